-- Counts down by one, and opens the latch at zero.
--
-- KEYS 1 the latch, 2 requests
-- ARGV 1-4 as in once.lua, 5 channel, 6 channel of this very latch
-- reply: the count after it (0 too if there was none)
--
-- The message is sent only by the script that removes the key: at a `0` with a count above zero,
-- Redisson's waiters would ask without pause.
return once(function()
    local count = value(KEYS[1])
    if count > 1 then
        return redis.call('decr', KEYS[1])
    end
    if redis.call('del', KEYS[1]) == 1 then
        -- This one first: whoever hears of the other has heard of it.
        tell(ARGV[6], '0')
        tell(ARGV[5], '0')
    end
    return 0
end)
