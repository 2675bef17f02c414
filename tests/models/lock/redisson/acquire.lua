-- The script of a Redisson client (3.16.8 and 4.7 alike) for `lock` and `tryLock`.
-- KEYS lock; ARGV lease, owner. Returns nil if granted, else the remaining lease in ms.
if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
    redis.call('hincrby', KEYS[1], ARGV[2], 1)
    redis.call('pexpire', KEYS[1], ARGV[1])
    return nil
end
return redis.call('pttl', KEYS[1])
