-- Removes a latch.
--
-- KEYS 1 the latch, 2 requests
-- ARGV 1-4 as in once.lua, 5 channel, 6 channel of this very latch
-- reply: 1 = there was one, 0 = there was none
--
-- `0` and not Redisson's `1`: the count is zero from now on, so whoever waits is let go, in this
-- library and in Redisson, whose own delete strands its waiters.
return once(function()
    if redis.call('del', KEYS[1]) == 0 then
        return false
    end
    tell(ARGV[6], '0')
    tell(ARGV[5], '0')
    return 1
end)
