-- Lowers the count by one, and opens the latch at zero.
--
-- KEYS 1 the latch, 2 record
-- ARGV 1-4 as in once.lua, 5 channel
-- reply: 1 = counted, 0 = the latch was already open
--
-- Only the request that removes the key sends the message. If Redisson's waiters got a `0` while
-- the count is above zero, they would send requests again and again without a pause.
local opens = false
return once(function()
    local count = stored(KEYS[1])
    opens = count and count <= 1
    return count and {'1', opens and 'del' or 'decr', KEYS[1]}
end, function()
    if opens then
        -- If the server refuses the message, the latch is open nevertheless.
        redis.pcall('publish', ARGV[5], '0')
    end
    return 1
end)
