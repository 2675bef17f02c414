-- Gives a permit a new lease, which may end sooner.
--
-- KEYS 1 the semaphore, 2 slot, 3 when its permits' leases end
-- ARGV 1-4 as in once.lua, 5 id, 6 lease in ms
-- reply: 1 = done, 0 = no such permit, or its lease has ended
return once(function()
    local ends = redis.call('zscore', KEYS[3], ARGV[5])
    if not ends or tonumber(ends) <= now then
        return nil
    end
    return {'1', 'zadd', KEYS[3], 'xx', math.floor(now) + ARGV[6], ARGV[5]}
end)
