-- Leaves the queue of a fair lock, or the lock itself if it was granted meanwhile.
--
-- KEYS and ARGV 1 to 3: line.lua
-- ARGV 4 owner, 5 1 = give up only its entry and keep a hold; otherwise 0
-- reply: 2 = it held the lock and has given it back, 1 = it waited and has left, 0 = neither
--
-- The scores of the waiters behind stay, since this waiter added no time to them. If the lock is
-- free now, the script hands it on: this owner may have held it, or may have got the message of
-- Redisson's release. A server that is out of memory refuses none of these commands.
local owner, only_place = ARGV[4], ARGV[5] == '1'

-- Each step runs by itself: if one key holds other data, the owner must still be removed from the
-- other key.
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
