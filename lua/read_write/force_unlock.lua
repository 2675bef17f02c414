-- Ends the holds of all who read, or of the one who writes. Who is first in line is next.
--
-- KEYS see ../hand_off.lua
-- ARGV 1 the lock's public channel, 2 `read` or `write`: which, 3 number of the database, if it is
--      not 0
-- reply: 1 = there was one; 0 = it is not held so; WRONGTYPE = what is there is no read-write lock, and
--        is left
--
-- The readers' timeouts end by themselves: their owners hold nothing any more.
public, database = ARGV[1], ARGV[3] or 0
local mode, _, foreign = mode_of()
if foreign then
    return foreign
elseif mode ~= ARGV[2] then
    look()
    return 0
end
redis.call('del', lock)
if not grant(now(), 1) then
    redis.pcall('publish', public, mode == 'write' and '1' or '0')
end
return 1
