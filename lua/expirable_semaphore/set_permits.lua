-- Sets how many permits there are, those that are out included: there may be fewer than none free.
--
-- KEYS 1 the semaphore, 2 slot, 3 when its permits' leases end
-- ARGV 1-4 as in once.lua, 5 permits, 6 channel
-- reply: 1
return once(function()
    local known = (stored(KEYS[1]) or 0) + redis.call('zcard', KEYS[3])
    return {'1', 'incrby', KEYS[1], ARGV[5] - known}
end, function(free)
    tell_free(ARGV[6], free)
    return 1
end)
