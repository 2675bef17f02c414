-- Shortens the lease of a kept fair hold, which no thread has.
--
-- KEYS and ARGV 1 to 3: queue.lua
-- ARGV 4 owner, 5 the time for which the hold is still kept, in ms, 6.. the followers to which the
--      hold was passed: they leave the queue
-- reply: nil = this owner does not have the lock; 0 = the owner keeps the lock for at most that
--        time
--
-- The script only shortens the lease, so the request may be sent again. The first waiter knows only
-- the old end of the lease, so the script sends this waiter a message to ask again.
local owner, keep_for = ARGV[4], tonumber(ARGV[5])
-- A replica may not know the holder, so the script must fail there: it always writes, and a replica
-- refuses each script that writes.
redis.call('zrem', timeouts, '')
for i = 6, #ARGV do
    remove(ARGV[i])
end
local held = redis.pcall('hexists', lock, owner)
if type(held) == 'table' and not string.find(held.err, 'WRONGTYPE') then
    return held
elseif held ~= 1 then
    return nil
elseif redis.call('pttl', lock) > keep_for then
    redis.call('pexpire', lock, keep_for)
    local entries = redis.call('lrange', queue, 0, 0)
    if entries[1] then
        pcall(send_ask, entries[1])
    end
end
return 0
