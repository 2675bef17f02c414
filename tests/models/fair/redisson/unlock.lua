-- The script of a Redisson 4.7 client for `unlock` of a fair lock, without its latch key.
-- KEYS lock, queue, timeouts; ARGV owner, lease, now (the client's), channel base.
local lock, queue, timeouts = KEYS[1], KEYS[2], KEYS[3]
local owner, lease, now, channel = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

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

if redis.call('exists', lock) == 0 then
    if head then
        redis.call('publish', channel .. ':' .. head, '0')
    end
    return 1
end
if redis.call('hexists', lock, owner) == 0 then
    return nil
end
if redis.call('hincrby', lock, owner, -1) > 0 then
    redis.call('pexpire', lock, lease)
    return 0
end
redis.call('del', lock)
if head then
    redis.call('publish', channel .. ':' .. head, '0')
end
return 1
