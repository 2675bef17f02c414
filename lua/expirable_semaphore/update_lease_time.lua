-- Gives a permit a new lease. If the new lease ends earlier, a message makes redlatch's waiters ask
-- again, because they sleep until the old end. The message is 0 (no free permits), so it wakes none
-- of Redisson's waiters.
--
-- KEYS 1 the semaphore, 2 record, 3 its permits with the ends of their leases
-- ARGV 1-4 as in once.lua, 5 id, 6 lease in ms, 7 channel
-- reply: 1 = done, 0 = no such permit, or its lease has ended
--
-- This script must succeed on a server that is out of memory. The ZREM removes nothing, but it is a
-- write that such a server accepts. After the ZREM, the server refuses no further command of the
-- script.
redis.call('zrem', KEYS[3], '')
local old_end
local new_end = math.floor(now) + ARGV[6]
return once(function()
    old_end = tonumber(redis.call('zscore', KEYS[3], ARGV[5]) or 0)
    if old_end <= now then
        return nil
    end
    return {'1', 'zadd', KEYS[3], 'xx', new_end, ARGV[5]}
end, function()
    if new_end < old_end then
        redis.pcall('publish', ARGV[7], '0')
    end
    return 1
end)
