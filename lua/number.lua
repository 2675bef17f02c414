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

-- How many permits threads of a client get that ask for `ARGV[first]` to `ARGV[last]` of them: for each all
-- that it needs, in their order, until there are not enough for the next. Where other clients wait, too,
-- the first one gets its own all the same, and those behind it what the client's share covers.
local function share(free, clients, first, last)
    local taken, limit = 0, free
    for at = first, last do
        if taken + ARGV[at] > limit then
            break
        end
        taken = taken + ARGV[at]
        limit = math.max(taken, free / clients)
    end
    return taken
end

-- Tells who waits for permits that some are free, and how many, if there are any. Redisson takes
-- the lower 32 bits of the number for an int: of 2^32 it would wake nobody.
local function tell_free(channel, free)
    free = tonumber(free)
    return free > 0 and redis.pcall('publish', channel, math.min(free, 2 ^ 31 - 1)) or 0
end

-- Tells who waits. Without the right to publish the change stands all the same.
local function tell(channel, message)
    redis.pcall('publish', channel, message)
end
