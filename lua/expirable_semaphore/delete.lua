-- Removes a semaphore with all its taken permits. As in Redisson, the script sends no message.
--
-- KEYS 1 the semaphore, 2 record, 3 its permits with the ends of their leases
-- ARGV 1-4 as in once.lua
-- reply: 1 = the semaphore existed, 0 = there was no semaphore
return once(function()
    -- If a key holds data of another type, these commands end the script with the server's error.
    local exists = redis.call('zcard', KEYS[3]) > 0 or stored(KEYS[1])
    return exists and {'1', 'del', KEYS[1], KEYS[3]}
end)
