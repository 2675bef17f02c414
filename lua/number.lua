-- Stands before the scripts of semaphores and latches, whose key holds a number.

-- The number under a key; false if there is none. Something else there is the server's error.
local function stored(key)
    local text = redis.call('get', key)
    return text and (tonumber(text) or redis.call('incrby', key, 0))
end

-- Tells who waits. Without the right to publish the change stands all the same.
local function tell(channel, message)
    redis.pcall('publish', channel, message)
end
