-- Changes how many permits there are, by a number that may be negative.
--
-- KEYS 1 the semaphore, 2 requests
-- ARGV 1-4 as in once.lua, 5 permits, 6 channel
-- reply: the new value
return once(function()
    local free = redis.call('incrby', KEYS[1], ARGV[5])
    if free > 0 then
        tell(ARGV[6], free)
    end
    return free
end)
