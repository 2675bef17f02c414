-- Takes a fair lock if nobody holds it and nobody waits for it. Does not queue.
--
-- KEYS 1 the lock, 2 the queue, 3 the timeouts
-- ARGV 1 lease in ms, 2 owner, 3 fair wait in ms, 4 prefix of the waiters' channels
-- reply: 1 = taken (or held by this owner already), 0 = not
--
-- Waiters that cannot be alive any more are dropped and keep nobody out; if one is dropped and
-- another waits behind, that one is told.
local lock, queue, timeouts = KEYS[1], KEYS[2], KEYS[3]
local lease, owner, fair_wait, channel = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

local holders = redis.call('hkeys', lock)
if #holders > 0 then
    local mine = false
    for _, holder in ipairs(holders) do
        mine = mine or holder == owner
    end
    if not mine then
        return 0
    elseif redis.call('pttl', lock) >= tonumber(lease) then
        return 1
    end
else
    local head = redis.call('lindex', queue, 0)
    if head then
        local clock = redis.call('time')
        local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
        local dropped = false
        while head do
            local score = tonumber(redis.call('zscore', timeouts, head) or 0)
            if score > now then
                if string.sub(head, 15, 15) == '8' and score > now + fair_wait then
                    redis.call('zadd', timeouts, now + fair_wait, head)
                end
                if dropped then
                    redis.pcall('publish', channel .. head, '0')
                end
                return 0
            end
            redis.call('zrem', timeouts, head)
            redis.call('lpop', queue)
            dropped = true
            head = redis.call('lindex', queue, 0)
        end
    end
end

-- As in acquire.lua: never a lock without an end.
redis.call('hset', lock, owner, 1)
local expiry = redis.pcall('pexpire', lock, lease)
if type(expiry) == 'table' and expiry.err then
    redis.call('del', lock)
    return expiry
end
return 1
