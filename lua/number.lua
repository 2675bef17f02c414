-- Stands before the scripts of semaphores and latches, whose key holds a number.

-- The number under a key; false if there is none. Something else there is the server's error, also
-- what only Lua takes for a number, as `19.99`, `0x1f` and `nan`.
local function stored(key)
    local text = redis.call('get', key)
    if text and text ~= '0' and (#text > 19 or not string.find(text, '^-?[1-9]%d*$')) then
        redis.call('incrby', key, 0)
    end
    return text and tonumber(text)
end

-- Tells who waits. Without the right to publish the change stands all the same.
local function tell(channel, message)
    redis.pcall('publish', channel, message)
end
