-- Removes a latch.
--
-- KEYS 1 the latch
-- ARGV 1 channel
-- reply: 1 = there was one, 0 = there was none
--
-- `0` and not Redisson's `1`: the count is zero from now on, so whoever waits is let go, in this
-- library and in Redisson, whose own delete strands its waiters.
if redis.call('del', KEYS[1]) == 0 then
    return 0
end
redis.pcall('publish', ARGV[1], '0')
return 1
