-- Sets the count of an open latch, which closes it.
--
-- KEYS 1 the latch, 2 record
-- ARGV 1-4 as in once.lua, 5 count, 6 channel, 7… `px` and the time to live in ms, if it has one
-- reply: 1 = closed, 0 = it has a count already
return once(function()
    -- Redisson keeps the key of a latch that was set to zero. Such a latch is open all the same.
    if (stored(KEYS[1]) or 0) > 0 then
        return nil
    end
    return {'1', 'set', KEYS[1], ARGV[5], unpack(ARGV, 7)}
end, function()
    -- If the user may not publish, the change stands all the same.
    redis.pcall('publish', ARGV[6], '1')
    return 1
end)
