-- Gives a fair lock back and tells the first in line.
--
-- KEYS 1 the lock, 2 the queue, 3 the timeouts
-- ARGV 1 owner, 2 fair wait in ms, 3 prefix of the waiters' channels, 4.. the followers to whom
--      this hold was passed meanwhile: they leave the queue, too
-- reply: nil = not this owner's (any more); else how many heard of it (-1: the message was refused)
--
-- One HDEL is the owner's check and the deletion. It is allowed without memory; what comes after it
-- may be refused (pcall) and the lock is free all the same. The owner names one acquisition: sent
-- again, the request answers nil.
-- The clock is only asked if nobody listens for the head. Such a head may also be deaf for a moment
-- or listen at another node, so it is dropped only if its score has passed.
local lock, queue, timeouts = KEYS[1], KEYS[2], KEYS[3]
local owner, fair_wait, channel = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local function tell(id)
    local heard = redis.pcall('publish', channel .. id, '0')
    return type(heard) == 'number' and heard or -1
end

local function first_in_line()
    local head = redis.pcall('lindex', queue, 0)
    return type(head) == 'string' and head or nil
end

if ARGV[4] then
    redis.pcall('zrem', timeouts, unpack(ARGV, 4))
    local passed = #ARGV - 3
    local front = redis.pcall('lrange', queue, 0, passed - 1)
    if not front.err and table.concat(front, ' ') == table.concat(ARGV, ' ', 4) then
        redis.call('ltrim', queue, passed, -1)
    else
        for i = 4, #ARGV do
            redis.pcall('lrem', queue, 1, ARGV[i])
        end
    end
end

local released = redis.call('hdel', lock, owner) == 1
if not released and redis.call('exists', lock) == 1 then
    return nil
end

local head = first_in_line()
local heard = head and tell(head) or 0
if head and heard == 0 then
    local told = head
    local clock = redis.call('time')
    local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
    while head do
        local score = redis.pcall('zscore', timeouts, head)
        score = type(score) ~= 'table' and tonumber(score or 0) or now + fair_wait
        if score > now then
            if string.sub(head, 15, 15) == '8' and score > now + fair_wait then
                redis.pcall('zadd', timeouts, now + fair_wait, head)
            end
            break
        end
        redis.call('zrem', timeouts, head)
        redis.call('lpop', queue)
        head = first_in_line()
    end
    if head and head ~= told then
        heard = tell(head)
    end
end
if released then
    return heard
end
return nil
