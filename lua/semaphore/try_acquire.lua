-- Takes permits, if there are enough.
--
-- KEYS 1 the semaphore, 2 requests
-- ARGV 1-4 as in once.lua, 5 permits
-- reply: 1 = taken, 0 = not
return once(function()
    local free = value(KEYS[1])
    if free < tonumber(ARGV[5]) then
        return false
    end
    redis.call('decrby', KEYS[1], ARGV[5])
    return 1
end)
