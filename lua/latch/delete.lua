-- Removes a latch.
--
-- KEYS 1 the latch, 2 record
-- ARGV 1-4 as in once.lua, 5 channel
-- reply: 1 = there was one, 0 = there was none
--
-- The count is zero from now on, so the message is `0`: it ends the waits of our clients and of
-- Redisson's. (Redisson's own delete sends `1`, and its waiters wait on.)
return once(function()
    return stored(KEYS[1]) and {'1', 'del', KEYS[1]}
end, function()
    -- If the user may not publish, the change stands all the same.
    redis.pcall('publish', ARGV[5], '0')
    return 1
end)
