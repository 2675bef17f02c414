-- Leaves the queue of a fair lock, or the lock itself if it was granted meanwhile.
--
-- KEYS and ARGV 1 to 3: line.lua
-- ARGV 4 owner, 5 1 = only its entry is given up, and not a hold; otherwise 0
-- reply: 2 = it held the lock and has given it back, 1 = it waited and has left, 0 = neither
--
-- No waiter behind is shifted, since this one added no time to their scores. If the lock is free,
-- the line moves: it was granted to this owner, or this owner got the message of Redisson's
-- release. All of it is allowed without memory.
local owner, only_place = ARGV[4], ARGV[5] == '1'

-- Each step by itself: other data under one key must not keep this owner under another.
local left, entries = pcall(leave, owner)
local held = only_place and 0 or redis.pcall('hdel', lock, owner)

if redis.pcall('exists', lock) == 0 then
    move_on()
end
if not left then
    return type(entries) == 'table' and entries or redis.error_reply(entries)
elseif type(held) == 'table' then
    return held
elseif held == 1 then
    return 2
end
return entries > 0 and 1 or 0
