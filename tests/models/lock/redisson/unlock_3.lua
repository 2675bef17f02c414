-- The script of a Redisson 3.16.8 client for `unlock`.
-- KEYS lock, channel; ARGV message, lease, owner. Returns nil if not the owner, 0 if still held, 1
-- if free.
if redis.call('hexists', KEYS[1], ARGV[3]) == 0 then
    return nil
end
if redis.call('hincrby', KEYS[1], ARGV[3], -1) > 0 then
    redis.call('pexpire', KEYS[1], ARGV[2])
    return 0
end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], ARGV[1])
return 1
