-- The script of a Redisson 3.16.8 client for `tryRelease`.
-- KEYS name, channel, timeouts; ARGV id (32 characters), permits. Returns 1 or 0.
if redis.call('zrem', KEYS[3], ARGV[1]) ~= 1 then
    return 0
end
redis.call('publish', KEYS[2], redis.call('incrby', KEYS[1], ARGV[2]))
return 1
