-- The script of a Redisson 3.16.8 client for `lock` and a timed `tryLock` of a fair lock.
-- KEYS lock, queue, timeouts; ARGV lease, owner, wait, now (the client's). Returns nil if granted,
-- else the time to wait in ms.
local lock, queue, timeouts = KEYS[1], KEYS[2], KEYS[3]
local lease, owner, wait, now = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local head = redis.call('lindex', queue, 0)
while head do
    local score = redis.call('zscore', timeouts, head)
    if not score or tonumber(score) > now then
        break
    end
    redis.call('zrem', timeouts, head)
    redis.call('lpop', queue)
    head = redis.call('lindex', queue, 0)
end

if redis.call('exists', lock) == 0 and (not head or head == owner) then
    redis.call('lpop', queue)
    redis.call('zrem', timeouts, owner)
    for _, id in ipairs(redis.call('zrange', timeouts, 0, -1)) do
        redis.call('zincrby', timeouts, -wait, id)
    end
    redis.call('hset', lock, owner, 1)
    redis.call('pexpire', lock, lease)
    return nil
end
if redis.call('hexists', lock, owner) == 1 then
    redis.call('hincrby', lock, owner, 1)
    redis.call('pexpire', lock, lease)
    return nil
end
local own = redis.call('zscore', timeouts, owner)
if own then
    return tonumber(own) - wait - now
end

local last = redis.call('lindex', queue, -1)
local base = last and last ~= owner and redis.call('zscore', timeouts, last)
local left = base and tonumber(base) - now or redis.call('pttl', lock)
if redis.call('zadd', timeouts, left + wait + now, owner) == 1 then
    redis.call('rpush', queue, owner)
end
return left
