-- The line before a fair lock. Stands before each of its scripts.
--
-- KEYS 1 the lock, 2 the queue, 3 the timeouts
-- ARGV 1 fair wait in ms, 2 prefix of the channels of Redisson's waiters; the script's own follow
--
-- What the server may refuse (access rights, memory) it refuses before anything has changed: a
-- command that could fail behind a change is tried before it, in a form that changes nothing.
-- (Each function that is made costs a run of the script a twelfth of a microsecond. Those that are
-- seldom needed are made where they are.)
local lock, queue, timeouts = KEYS[1], KEYS[2], KEYS[3]
local fair_wait, channels = tonumber(ARGV[1]), ARGV[2]

local function ours(id)
    return string.sub(id, 15, 15) == '8'
end

local time
local function now()
    if not time then
        local clock = redis.call('time')
        time = clock[1] * 1000 + math.floor(clock[2] / 1000)
    end
    return time
end

-- A waiter should ask. One of ours hears it on its client's own channel, under its number; one of
-- Redisson's on a channel of its own. How many heard it; -1: the message was refused.
local function tell(id)
    local heard
    if ours(id) then
        local own = 'redisson_lock__channel:{redlatch:' .. string.sub(id, 1, 36) .. '}'
        heard = redis.pcall('publish', own, 'ask ' .. string.sub(id, 38) .. ' ' .. lock)
    else
        heard = redis.pcall('publish', channels .. id, '0')
    end
    return type(heard) == 'number' and heard or -1
end

-- Takes the head off the queue: out of the list and the set, or out of neither.
local function drop(head)
    redis.call('ltrim', queue, 0, -1)
    redis.call('zrem', timeouts, head)
    redis.call('ltrim', queue, 1, -1)
end

-- Takes a waiter out of the queue, wherever it stands. How many entries it had.
local function leave(id)
    redis.call('zrem', timeouts, '')
    return redis.call('lrem', queue, 1, id) + redis.call('zrem', timeouts, id)
end

-- The first in line that may be alive, or is `asker`, who is; and whether dead ones were dropped.
-- One of ours has no more than the fair wait left as soon as nobody holds the lock before it.
local function living_head(asker)
    local dropped = false
    while true do
        local head = redis.call('lindex', queue, 0)
        local score = head and head ~= asker and tonumber(redis.call('zscore', timeouts, head) or 0)
        if not score then
            return head, dropped
        elseif score > now() then
            if ours(head) and score > now() + fair_wait then
                redis.pcall('zadd', timeouts, now() + fair_wait, head)
            end
            return head, dropped
        end
        drop(head)
        dropped = true
    end
end

