-- Removes a latch.
--
-- KEYS 1 the latch, 2 record
-- ARGV 1-4 as in once.lua, 5 channel
-- reply: 1 = there was one, 0 = there was none
--
-- The message is `0` and not Redisson's `1`. The count is zero from now on, so all waiters may go,
-- ours and Redisson's. (Redisson's own delete strands its waiters.)
return once(function()
    return stored(KEYS[1]) and {'1', 'del', KEYS[1]}
end, function()
    -- Without the right to publish the change stands all the same.
    redis.pcall('publish', ARGV[5], '0')
    return 1
end)
