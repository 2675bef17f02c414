-- Stands before queue.lua in release.lua: sets a lock free whose queue is empty, while it is too early
-- to ask for others (AGE of queue.lua).
--
-- The rest would do the same. But to make its functions costs a run as much as these commands. (With
-- a chain by the server's clock somebody waited a moment ago: then they do not matter.)
local redis, since = redis, tonumber(ARGV[2])
if since <= 0 and since > -10 and KEYS[2] and redis.pcall('exists', KEYS[2]) == 0
    and redis.pcall('hexists', KEYS[1], ARGV[1]) == 1 then
    redis.call('del', KEYS[1])
    return type(redis.pcall('publish', ARGV[4], '0')) == 'number' and 0 or -1
end

