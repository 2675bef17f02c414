-- Removes a latch.
--
-- KEYS 1 the latch, 2 record
-- ARGV 1-4 as in once.lua, 5 channel
-- reply: 1 = the latch existed, 0 = there was no latch
--
-- The message `0` says that the count is zero. The message ends the waits of all clients,
-- Redisson's as well. (Redisson's own script sends `1`, so its waiters would continue to wait.)
return once(function()
    return stored(KEYS[1]) and {'1', 'del', KEYS[1]}
end, function()
    -- If the server refuses the message, the latch is removed nevertheless.
    redis.pcall('publish', ARGV[5], '0')
    return 1
end)
