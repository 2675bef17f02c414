-- Closes a latch that is open.
--
-- KEYS 1 the latch, 2 requests
-- ARGV 1-4 as in once.lua, 5 count, 6 channel
-- reply: 1 = closed, 0 = it has a count already
return once(function()
    -- Redisson leaves a latch that was set to zero as a key, open all the same.
    if value(KEYS[1]) > 0 then
        return false
    end
    redis.call('set', KEYS[1], ARGV[5])
    tell(ARGV[6], '1')
    return 1
end)
