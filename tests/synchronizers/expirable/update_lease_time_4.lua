-- The script of a Redisson 4.7 client for `updateLeaseTime`.
-- KEYS name, timeouts, channel; ARGV id (16 bytes), the end of the lease, now, PUBLISH. Returns 1
-- or 0.
local lapsed = redis.call('zrangebyscore', KEYS[2], 0, ARGV[3], 'limit', 0, -1)
if #lapsed > 0 then
    redis.call('zrem', KEYS[2], unpack(lapsed))
    local free = redis.call('incrby', KEYS[1], #lapsed)
    if tonumber(free) > 0 then
        redis.call(ARGV[4], KEYS[3], free)
    end
end
if not redis.call('zscore', KEYS[2], ARGV[1]) then
    return 0
end
redis.call('zadd', KEYS[2], ARGV[2], ARGV[1])
return 1
