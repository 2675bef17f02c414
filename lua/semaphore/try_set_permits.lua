-- Makes a semaphore, unless there is one.
--
-- KEYS 1 the semaphore, 2 requests
-- ARGV 1-4 as in once.lua, 5 permits, 6 channel
-- reply: 1 = made, 0 = there is one
return once(function()
    if not redis.call('set', KEYS[1], ARGV[5], 'nx') then
        return false
    end
    if tonumber(ARGV[5]) > 0 then
        tell(ARGV[6], ARGV[5])
    end
    return 1
end)
