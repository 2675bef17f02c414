-- Takes a fair lock, or a place in its queue.
--
-- KEYS 1 the lock, 2 the queue, 3 the timeouts
-- ARGV 1 lease in ms, 2 owner, 3 fair wait in ms, 4 Redisson's wait in ms, 5 prefix of the waiters'
--      channels, 6 whether an earlier request of this owner was answered "queued" (1) or not (0),
--      7 how many followers to name
-- reply: {1, follower...} = taken; the followers are waiters of the same client that stand directly
--        behind, in their order
--        {0, place, ask} = queued; place 0 = first in line, else somebody is ahead; ask = ms after
--        which the first may ask again unless told before (-1: only when told)
--
-- The owner names one acquisition, so the request may be sent again: a holder is granted again, a
-- waiter stays where it is. A waiter that was queued and is not in the queue was dropped from its
-- head while it could not say that it lives: it goes back there, not to the end.
-- A score holds time for Redisson's waiters ahead, none for ours, and a grant shifts nobody
-- (README.md, "Scores"). While the lock is held nobody is dropped: a dead waiter costs nothing yet,
-- and one that was only stopped may come back.
local lock, queue, timeouts = KEYS[1], KEYS[2], KEYS[3]
local lease, owner, channel = ARGV[1], ARGV[2], ARGV[5]
local fair_wait, redisson_wait = tonumber(ARGV[3]), tonumber(ARGV[4])
local was_queued, followers = ARGV[6] == '1', tonumber(ARGV[7])

local function client(id)
    return string.sub(id, 1, 37)
end

local function number(id)
    return tonumber(string.sub(id, 38)) or 0
end

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

local function tell(id)
    redis.pcall('publish', channel .. id, '0')
end

local function front()
    return redis.call('lrange', queue, 0, followers + 1)
end

-- A lock never stays without an end: where HSET is allowed and PEXPIRE refused (an ACL), it would
-- be held for ever. `behind` is the front of the queue that is left.
local function take(behind)
    redis.call('hset', lock, owner, 1)
    local expiry = redis.pcall('pexpire', lock, lease)
    if type(expiry) == 'table' and expiry.err then
        redis.call('del', lock)
        return expiry
    end
    -- Nobody is told when a lock lapses: of a lease that keep_alive may come too late for, the
    -- new head must hear now.
    if behind[1] and tonumber(lease) < fair_wait then
        tell(behind[1])
    end
    local reply = {1}
    for i, id in ipairs(behind) do
        if i > followers or client(id) ~= client(owner) then
            break
        end
        reply[i + 1] = id
    end
    return reply
end

local function queued(place)
    if place > 0 then
        return {0, place, -1}
    end
    local left = redis.call('pttl', lock)
    return {0, 0, left == 0 and 1 or left}
end

-- How many waiters of Redisson's are in the queue. The highest score tells, if a live one of ours
-- has it: it lies within the fair wait above so many times Redisson's wait, and no waiter of
-- Redisson's stands behind, or that one would have the highest.
local function redissons()
    local top = redis.call('zrevrange', timeouts, 0, 0, 'withscores')
    if not top[1] then
        return 0
    end
    local left = tonumber(top[2]) - now()
    local rest = left % redisson_wait
    if left > 0 and ours(top[1]) and rest <= fair_wait and rest >= fair_wait / 2 then
        return math.floor(left / redisson_wait)
    end
    local count = 0
    for _, id in ipairs(redis.call('lrange', queue, 0, -1)) do
        count = count + (ours(id) and 0 or 1)
    end
    return count
end

-- Into the set and the list, or into neither. A score that is there stays: what Redisson's waiters
-- behind have is measured from it.
local function enter(redissons_ahead, command, ...)
    local score = now() + fair_wait + redisson_wait * redissons_ahead
    local new = redis.call('zadd', timeouts, 'nx', score, owner)
    local place = new == 0 and redis.call('lpos', queue, owner)
    if place then
        return queued(place)
    end
    local length = redis.pcall(command, queue, ...)
    if type(length) == 'table' then
        redis.call('zrem', timeouts, owner)
        return length
    end
    return queued(command == 'rpush' and length - 1 or redis.call('lpos', queue, owner))
end

-- Back to the head: before everybody, but behind those of the own client that came earlier, who
-- were dropped too and came back first.
local function come_back(free)
    local all = redis.call('lrange', queue, 0, -1)
    local place, redissons_ahead, seen = 0, 0, 0
    for i, id in ipairs(all) do
        if client(id) == client(owner) and number(id) < number(owner) then
            place, redissons_ahead = i, seen
        end
        seen = seen + (ours(id) and 0 or 1)
    end
    if free and place == 0 then
        redis.call('zrem', timeouts, owner)
        return take(all)
    end
    local reply
    if place == 0 then
        reply = enter(0, 'lpush', owner)
    else
        reply = enter(redissons_ahead, 'linsert', 'after', all[place], owner)
    end
    -- What `redissons` relies on: Redisson's waiters have a higher score than ours ahead of them.
    local least = now() + fair_wait + redisson_wait * redissons_ahead + 1
    for i = place + 1, #all do
        local score = not ours(all[i]) and redis.call('zscore', timeouts, all[i])
        if not score or tonumber(score) >= least then
            break
        end
        redis.call('zadd', timeouts, least, all[i])
    end
    return reply
end

local holders = redis.call('hkeys', lock)
for _, holder in ipairs(holders) do
    if holder == owner then
        -- A copy that comes late cuts no lease that was made longer since.
        if redis.call('pttl', lock) >= tonumber(lease) then
            return {1}
        end
        return take({})
    end
end

local free = #holders == 0
local new_head
if free then
    local line = front()
    while line[1] and line[1] ~= owner do
        local score = tonumber(redis.call('zscore', timeouts, line[1]) or 0)
        if score > now() then
            if ours(line[1]) and score > now() + fair_wait then
                redis.call('zadd', timeouts, now() + fair_wait, line[1])
            end
            break
        end
        -- The set first: if something else lies under its key, nothing has changed yet.
        redis.call('zrem', timeouts, line[1])
        redis.call('lpop', queue)
        line = front()
        new_head = line[1]
    end
    if line[1] == owner then
        redis.call('zrem', timeouts, owner)
        redis.call('lpop', queue)
        table.remove(line, 1)
        return take(line)
    elseif not line[1] then
        return take(line)
    end
end

local reply
local place = was_queued and redis.call('lpos', queue, owner)
if place then
    reply = queued(place)
elseif was_queued then
    reply = come_back(free)
else
    reply = enter(redissons(), 'rpush', owner)
end
if new_head and reply[1] == 0 then
    tell(new_head)
end
return reply
