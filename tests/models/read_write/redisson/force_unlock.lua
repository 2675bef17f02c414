-- The script of a Redisson client for `forceUnlock` of a read lock or of a write lock.
-- KEYS lock, channel; ARGV message (0: of readers, 1: of a writer).
if redis.call('hget', KEYS[1], 'mode') == (ARGV[1] == '0' and 'read' or 'write') then
    redis.call('del', KEYS[1])
    redis.call('publish', KEYS[2], ARGV[1])
    return 1
end
return 0
