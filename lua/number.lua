-- Prepended to the scripts of semaphores and latches, whose key holds a number.

-- Returns the integer that the key holds, or false if there is no key. Any other value ends the
-- script with the server's error. (Lua would accept some of these values as numbers, such as
-- `19.99`, `0x1f` and `nan`.)
local function stored(key)
    local text = redis.call('get', key)
    if text and text ~= '0' and (#text > 19 or not string.find(text, '^-?[1-9]%d*$')) then
        redis.call('incrby', key, 0)
    end
    return text and tonumber(text)
end

-- Returns how many permits the threads of a client get together. The first thread asks for
-- `ARGV[first]` permits, and the last thread for `ARGV[last]`. Each thread in turn gets all its
-- permits, until too few are left for the next thread. Threads after the first get permits only
-- within the client's share, `free / clients`.
local function share(free, clients, first, last)
    local taken, limit = 0, free
    for at = first, last do
        local total = taken + ARGV[at]
        if total > limit then
            break
        end
        taken, limit = total, math.max(total, free / clients)
    end
    return taken
end

-- Publishes how many permits are free, if any are. Redisson reads the lower 32 bits of the number
-- as an int, so 2^32 would wake no waiter. (The function formats the number itself, because Redis
-- converts a Lua number more slowly.)
local function publish_free(channel, free)
    free = tonumber(free)
    local text = string.format('%d', math.min(free, 2 ^ 31 - 1))
    return free > 0 and redis.pcall('publish', channel, text) or 0
end
