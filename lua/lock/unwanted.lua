-- Stands before queue.lua in release.lua: sets a lock free whose queue is empty, while it is too early
-- to ask for others (AGE of queue.lua).
--
-- The rest would do the same. But to make its functions costs a run as much as these commands.
if KEYS[2] and redis.pcall('exists', KEYS[2]) == 0
    and redis.pcall('hexists', KEYS[1], ARGV[3]) == 1 then
    local start, now = tonumber(ARGV[4]), 0
    if start > 0 then
        local clock = redis.pcall('time')
        now = clock[1] and clock[1] * 1000 + math.floor(clock[2] / 1000) or 0
    end
    if math.abs(now - start) < 10 then
        redis.call('del', KEYS[1])
        return type(redis.pcall('publish', ARGV[1], '0')) == 'number' and 0 or -1
    end
end

