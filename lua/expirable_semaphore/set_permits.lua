-- Sets the number of all permits, free and taken. The number of free permits may become negative.
--
-- KEYS 1 the semaphore, 2 record, 3 its permits with the ends of their leases
-- ARGV 1-4 as in once.lua, 5 permits, 6 channel
-- reply: 1
local free
return once(function()
    -- If the key holds data of another type, `stored` ends the script with the server's error.
    stored(KEYS[1])
    free = ARGV[5] - redis.call('zcard', KEYS[3])
    return {'1', 'set', KEYS[1], free, 'keepttl'}
end, function()
    publish_free(ARGV[6], free)
    return 1
end)
