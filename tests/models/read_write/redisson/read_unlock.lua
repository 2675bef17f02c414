-- The script of a Redisson client for a read lock's `unlock`. 4.7 remembers the reply, in case the
-- request is sent again, 3.16.8 does not (four KEYS, two ARGV).
-- KEYS lock, channel, timeouts, prefix of all timeouts, key for this reply; ARGV message, owner,
-- command that publishes, time to live of that key. Returns nil if not the owner, 0 if others hold
-- it, 1 if free.
local answered = KEYS[5] and redis.call('get', KEYS[5])
if answered then
    return tonumber(answered)
end
local function answer(what)
    if KEYS[5] then
        redis.call('set', KEYS[5], what, 'px', ARGV[4])
    end
    return what
end
local publish = ARGV[3] or 'publish'
local mode = redis.call('hget', KEYS[1], 'mode')
if mode == false then
    redis.call(publish, KEYS[2], ARGV[1])
    answer(1)
    if KEYS[5] then
        return nil
    end
    return 1
end
if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then
    return nil
end
local level = redis.call('hincrby', KEYS[1], ARGV[2], -1)
if level == 0 then
    redis.call('hdel', KEYS[1], ARGV[2])
end
redis.call('del', KEYS[3] .. ':' .. (level + 1))
if redis.call('hlen', KEYS[1]) > 1 then
    local longest = -3
    for _, field in ipairs(redis.call('hkeys', KEYS[1])) do
        local count = tonumber(redis.call('hget', KEYS[1], field))
        if type(count) == 'number' then
            for i = count, 1, -1 do
                local left = redis.call('pttl', KEYS[4] .. ':' .. field .. ':rwlock_timeout:' .. i)
                longest = math.max(left, longest)
            end
        end
    end
    if longest > 0 then
        redis.call('pexpire', KEYS[1], longest)
        return answer(0)
    end
    if mode == 'write' then
        return answer(0)
    end
end
redis.call('del', KEYS[1])
redis.call(publish, KEYS[2], ARGV[1])
return answer(1)
