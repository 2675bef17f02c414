-- Ends the holds of all who read, or of the one who writes. Who is first in line is next.
--
-- KEYS, ARGV 1 and 2 see ../hand_off.lua
-- ARGV 3 `read` or `write`: which
-- reply: 1 = there was one; 0 = it is not held so; WRONGTYPE = what is there is no read-write lock, and
--        is left
--
-- The readers' timeouts end by themselves: their owners hold nothing any more.
local mode, _, foreign = mode_of()
if foreign then
    return foreign
elseif mode ~= ARGV[3] then
    look()
    return 0
end
redis.call('del', lock)
if not grant(now(), 1) then
    redis.pcall('publish', public, mode == 'write' and '1' or '0')
end
return 1
