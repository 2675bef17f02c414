-- Gives a permit a new lease, which may end sooner. Then a message asks the waiters to ask again:
-- they sleep until the end that they know. Its zero says that no permit is free, and wakes none of
-- Redisson's.
--
-- KEYS 1 the semaphore, 2 record, 3 when its permits' leases end
-- ARGV 1-4 as in once.lua, 5 id, 6 lease in ms, 7 channel
-- reply: 1 = done, 0 = no such permit, or its lease has ended
--
-- A permit that is taken needs no memory to stay so: the ZREM takes nothing out, and lets the
-- commands behind it pass.
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
