-- Counts down by one, and opens the latch at zero.
--
-- KEYS 1 the latch, 2 record
-- ARGV 1-4 as in once.lua, 5 channel
-- reply: 1 = counted, 0 = it was open
--
-- Only the script that removes the key sends the message: if a `0` came while the count is above
-- zero, Redisson's waiters would ask without pause.
local opens = false
return once(function()
    local count = stored(KEYS[1])
    opens = count and count <= 1
    return count and {'1', opens and 'del' or 'decr', KEYS[1]}
end, function()
    if opens then
        -- Without the right to publish the change stands all the same.
        redis.pcall('publish', ARGV[5], '0')
    end
    return 1
end)
