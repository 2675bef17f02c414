-- Gives a lock back and wakes who waits for it.
--
-- KEYS 1 the lock
-- ARGV 1 owner, 2 channel, 3 message
-- reply: nil = not this owner's (any more), nothing done; else how many subscribers heard of it
--        (-1: the lock is free, but the server refused the message)
--
-- No HINCRBY: it is refused when memory is short, DEL is not. The owner names one acquisition, so
-- the request may be sent again: the second time it answers nil.
-- Something else that was written over the lock is not this owner's either.
local held = redis.pcall('hexists', KEYS[1], ARGV[1])
if type(held) == 'table' and not string.find(held.err, 'WRONGTYPE') then
    return held
elseif held ~= 1 then
    return nil
end
redis.call('del', KEYS[1])
local heard = redis.pcall('publish', ARGV[2], ARGV[3])
if type(heard) == 'table' then
    return -1
end
return heard
