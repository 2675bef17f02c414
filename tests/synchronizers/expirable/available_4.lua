-- The script of a Redisson 4.7 client for `availablePermits`.
-- KEYS name, timeouts, channel; ARGV now, PUBLISH. Returns the number.
local lapsed = redis.call('zrangebyscore', KEYS[2], 0, ARGV[1], 'limit', 0, -1)
if #lapsed > 0 then
    redis.call('zrem', KEYS[2], unpack(lapsed))
    local free = redis.call('incrby', KEYS[1], #lapsed)
    if tonumber(free) > 0 then
        redis.call(ARGV[2], KEYS[3], free)
    end
    return free
end
return tonumber(redis.call('get', KEYS[1]) or 0)
