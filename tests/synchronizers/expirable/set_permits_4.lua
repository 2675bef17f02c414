-- The script of a Redisson 4.7 client for `setPermits`.
-- KEYS name, channel, timeouts; ARGV permits, PUBLISH.
local free = redis.call('get', KEYS[1])
if not free then
    redis.call('set', KEYS[1], ARGV[1])
else
    local known = tonumber(free) + redis.call('zcount', KEYS[3], 0, '+inf')
    redis.call('incrby', KEYS[1], tonumber(ARGV[1]) - known)
end
redis.call(ARGV[2], KEYS[2], ARGV[1])
