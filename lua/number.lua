-- Stands before the scripts of semaphores and latches, whose key holds a number.

-- Returns the number under a key, or false. Any other value ends the script with the server's
-- error, even a value that Lua takes for a number, such as `19.99`, `0x1f` and `nan`.
local function stored(key)
    local text = redis.call('get', key)
    if text and text ~= '0' and (#text > 19 or not string.find(text, '^-?[1-9]%d*$')) then
        redis.call('incrby', key, 0)
    end
    return text and tonumber(text)
end

-- Returns how many permits the threads of a client get together. One thread asks for `ARGV[first]`
-- permits, and so on to `ARGV[last]`. In this order each thread gets all its permits, until there
-- are too few for the next thread. If other clients wait, too, the first thread still gets all its
-- permits, and the next threads get permits only within the client's share.
local function share(free, clients, first, last)
    local taken, limit = 0, free
    for at = first, last do
        local wanted = taken + ARGV[at]
        if wanted > limit then
            break
        end
        taken, limit = wanted, math.max(wanted, free / clients)
    end
    return taken
end

-- Publishes how many permits are free, if any are. Redisson reads the lower 32 bits of the number
-- as an int, so 2^32 would wake no waiter. (The number is made text first: Lua would write it with
-- a fraction, which costs more.)
local function tell_free(channel, free)
    free = tonumber(free)
    local text = string.format('%d', math.min(free, 2 ^ 31 - 1))
    return free > 0 and redis.pcall('publish', channel, text) or 0
end
