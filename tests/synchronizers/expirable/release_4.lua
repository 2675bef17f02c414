-- The script of a Redisson 4.7 client for `tryRelease` of one permit.
-- KEYS name, channel, timeouts; ARGV id (16 bytes), permits, now, PUBLISH. Returns 1, or 0 if the
-- permit is gone or its lease had ended.
local ends = redis.call('zscore', KEYS[3], ARGV[1])
if redis.call('zrem', KEYS[3], ARGV[1]) ~= 1 then
    return 0
end
redis.call(ARGV[4], KEYS[2], redis.call('incrby', KEYS[1], ARGV[2]))
return tonumber(ends) > tonumber(ARGV[3]) and 1 or 0
