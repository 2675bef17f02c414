-- Takes all permits there are.
--
-- KEYS 1 the semaphore, 2 requests
-- ARGV 1-4 as in once.lua
-- reply: how many they were (negative if more were out than there are)
return once(function()
    local free = value(KEYS[1])
    if free == 0 then
        return false
    end
    redis.call('incrby', KEYS[1], string.format('%.0f', -free))
    return free
end)
