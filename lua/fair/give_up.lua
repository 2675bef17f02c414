-- Leaves the queue of a fair lock, or the lock itself if it was granted meanwhile.
--
-- KEYS and ARGV 1 to 3: line.lua
-- ARGV 4 owner, 5 1 = give up only its entry, and no hold; otherwise 0
-- reply: 2 = it held the lock and has given it back, 1 = it waited and has left, 0 = neither
--
-- The scores of the waiters behind stay, since this waiter added no time to them. If the lock is
-- free, the line moves: the lock was granted to this owner, or this owner got the message of
-- Redisson's release. The whole script is allowed without memory.
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
