-- The script of a Redisson client for a write lock's `unlock`. 4.7 remembers the reply, in case the
-- request is sent again, 3.16.8 does not (two KEYS, three ARGV).
-- KEYS lock, channel, key for this reply; ARGV message, lease, owner, command that publishes, time
-- to live of that key. Returns nil if not the owner, 0 if still held, 1 if free, or held to read.
local answered = KEYS[3] and redis.call('get', KEYS[3])
if answered then
    return tonumber(answered)
end
local function answer(what)
    if KEYS[3] then
        redis.call('set', KEYS[3], what, 'px', ARGV[5])
    end
    return what
end
local publish = ARGV[4] or 'publish'
local mode = redis.call('hget', KEYS[1], 'mode')
if mode == false then
    redis.call(publish, KEYS[2], ARGV[1])
    answer(1)
    if KEYS[3] then
        return nil
    end
    return 1
end
if mode == 'write' and redis.call('hexists', KEYS[1], ARGV[3]) == 1 then
    if redis.call('hincrby', KEYS[1], ARGV[3], -1) > 0 then
        redis.call('pexpire', KEYS[1], ARGV[2])
        return answer(0)
    end
    redis.call('hdel', KEYS[1], ARGV[3])
    if redis.call('hlen', KEYS[1]) == 1 then
        redis.call('del', KEYS[1])
        redis.call(publish, KEYS[2], ARGV[1])
    else
        redis.call('hset', KEYS[1], 'mode', 'read')
    end
    return answer(1)
end
return nil
