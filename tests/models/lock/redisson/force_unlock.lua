-- The script of a Redisson client for `forceUnlock`.
-- KEYS lock, channel; ARGV message.
if redis.call('del', KEYS[1]) == 1 then
    redis.call('publish', KEYS[2], ARGV[1])
    return 1
end
return 0
