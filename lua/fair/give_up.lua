-- Leaves the queue of a fair lock, or the lock itself if it was granted meanwhile.
--
-- KEYS 1 the lock, 2 the queue, 3 the timeouts
-- ARGV 1 owner, 2 fair wait in ms, 3 prefix of the waiters' channels
-- reply: 2 = it held the lock and has given it back, 1 = it waited and has left, 0 = neither
--
-- Nobody behind is shifted: this waiter added no time to their scores. If the lock is free the new
-- head is told, for the message of the release has gone to the one that leaves. All of it is
-- allowed without memory.
local lock, queue, timeouts = KEYS[1], KEYS[2], KEYS[3]
local owner, fair_wait, channel = ARGV[1], tonumber(ARGV[2]), ARGV[3]

-- Each by itself: something else under one key must not keep this waiter under another.
local waited = redis.pcall('zrem', timeouts, owner)
local left = redis.pcall('lrem', queue, 1, owner)
local held = redis.pcall('hdel', lock, owner)
for _, outcome in ipairs({waited, left, held}) do
    if type(outcome) == 'table' then
        return outcome
    end
end

if redis.call('exists', lock) == 0 then
    local clock = redis.call('time')
    local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
    local head = redis.call('lindex', queue, 0)
    while head do
        local score = tonumber(redis.call('zscore', timeouts, head) or 0)
        if score > now then
            if string.sub(head, 15, 15) == '8' and score > now + fair_wait then
                redis.pcall('zadd', timeouts, now + fair_wait, head)
            end
            redis.pcall('publish', channel .. head, '0')
            break
        end
        redis.call('zrem', timeouts, head)
        redis.call('lpop', queue)
        head = redis.call('lindex', queue, 0)
    end
end
if held == 1 then
    return 2
end
return (waited == 1 or left == 1) and 1 or 0
