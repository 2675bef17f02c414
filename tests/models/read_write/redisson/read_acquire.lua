-- The script of a Redisson client (3.16.8 and 4.7 alike) for a read lock's `lock`.
-- KEYS lock, timeouts; ARGV lease, owner, owner as a writer. Returns nil if granted, else the
-- remaining lease in ms.
local mode = redis.call('hget', KEYS[1], 'mode')
if mode == false then
    redis.call('hset', KEYS[1], 'mode', 'read')
    redis.call('hset', KEYS[1], ARGV[2], 1)
    redis.call('set', KEYS[2] .. ':1', 1)
    redis.call('pexpire', KEYS[2] .. ':1', ARGV[1])
    redis.call('pexpire', KEYS[1], ARGV[1])
    return nil
end
if mode == 'read' or mode == 'write' and redis.call('hexists', KEYS[1], ARGV[3]) == 1 then
    local level = redis.call('hincrby', KEYS[1], ARGV[2], 1)
    local timeout = KEYS[2] .. ':' .. level
    redis.call('set', timeout, 1)
    redis.call('pexpire', timeout, ARGV[1])
    local left = redis.call('pttl', KEYS[1])
    redis.call('pexpire', KEYS[1], math.max(left, tonumber(ARGV[1])))
    return nil
end
return redis.call('pttl', KEYS[1])
