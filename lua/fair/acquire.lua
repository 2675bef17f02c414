-- Takes a fair lock, or a place in its queue.
--
-- KEYS and ARGV 1, 2: line.lua
-- ARGV 3 lease in ms, 4 owner, 5 Redisson's wait in ms, 6 whether an earlier request of this owner
--      was answered "queued" (1) or not (0), 7 how many followers to name
-- reply: {1, follower...} = taken; the followers are waiters of the same client that stand directly
--        behind, in their order
--        {0, ask, redisson} = queued; ask = ms after which it may ask again unless told before (-1:
--        only when told); redisson = 1 if one of Redisson's may be who tells it, on the owner's own
--        channel: it holds the lock, or stands ahead
--
-- The owner names one acquisition, so the request may be sent again: a holder is granted again, a
-- waiter stays where it is. A waiter that was queued and is not in the queue was dropped from its
-- head while it could not say that it lives: it goes back there, not to the end.
-- A score holds time for Redisson's waiters ahead, none for ours, and a grant shifts nobody
-- (README.md, "Scores"). While the lock is held nobody is dropped: a dead waiter costs nothing yet,
-- and one that was only stopped may come back.
local lease, owner, redisson_wait = ARGV[3], ARGV[4], tonumber(ARGV[5])
local was_queued, followers = ARGV[6] == '1', tonumber(ARGV[7])
-- The head of a free lock was told so. If it has not come after this long, it is told again.
local hesitation = 1000

local function client(id)
    return string.sub(id, 1, 36)
end

local function front()
    return redis.call('lrange', queue, 0, followers + 1)
end

-- `behind` is the front of the queue that is left.
local function granted(behind)
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

local held_by, left, foreign = holder()
if foreign then
    return foreign
elseif held_by == owner then
    -- A copy that comes late cuts no lease that was made longer since.
    if left < tonumber(lease) then
        redis.call('pexpire', lock, lease)
    end
    return {1}
end

if not held_by then
    local line = front()
    if line[1] and line[1] ~= owner then
        local head, dropped = living_head(owner)
        if dropped then
            line = front()
        end
        -- Who asks again has waited in vain for it to come: it missed its message, or nobody waits
        -- under its number any more, and its client takes it out.
        if head and head ~= owner and (dropped or was_queued) then
            tell(head)
        end
    end
    if line[1] == owner then
        take(owner, lease)
        local dropped, caught = pcall(drop, owner)
        if not dropped then
            redis.call('pexpire', lock, -1)
            return type(caught) == 'table' and caught or redis.error_reply(caught)
        end
        table.remove(line, 1)
        return granted(line)
    elseif not line[1] then
        take(owner, lease, true)
        return granted(line)
    end
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

local function queued(place, redissons_ahead)
    local ask = -1
    if not held_by then
        ask = place == 1 and hesitation or -1
    elseif place == 0 then
        ask = math.max(1, left)
    end
    local redisson = held_by and not ours(held_by) or redissons_ahead > 0
    return {0, ask, redisson and 1 or 0}
end

-- Into the set and the list, or into neither. A score that is there stays: what Redisson's waiters
-- behind have is measured from it.
local function enter(place, redissons_ahead, command, ...)
    local score = now() + fair_wait + redisson_wait * redissons_ahead
    local new = redis.call('zadd', timeouts, 'nx', score, owner)
    local there = new == 0 and redis.call('lpos', queue, owner)
    if there then
        return queued(there, redissons_ahead)
    end
    local length = redis.pcall(command, queue, ...)
    if type(length) == 'table' then
        redis.pcall('zrem', timeouts, owner)
        return length
    end
    return queued(place or length - 1, redissons_ahead)
end

-- Back to the head: before everybody, but behind those of the own client that came earlier, who
-- were dropped too and came back first.
local function come_back()
    local all = redis.call('lrange', queue, 0, -1)
    local place, redissons_ahead, seen = 0, 0, 0
    local number = tonumber(string.sub(owner, 38))
    for i, id in ipairs(all) do
        if client(id) == client(owner) and tonumber(string.sub(id, 38)) < number then
            place, redissons_ahead = i, seen
        end
        seen = seen + (ours(id) and 0 or 1)
    end
    if not held_by and place == 0 then
        redis.call('zrem', timeouts, owner)
        take(owner, lease)
        return granted(all)
    end
    -- What `redissons` relies on: Redisson's waiters have a higher score than ours ahead of them.
    local least = now() + fair_wait + redisson_wait * redissons_ahead + 1
    local last = place
    while all[last + 1] and not ours(all[last + 1]) do
        local score = redis.call('zscore', timeouts, all[last + 1])
        if not score or tonumber(score) >= least then
            break
        end
        last = last + 1
    end
    local reply
    if place == 0 then
        reply = enter(0, 0, 'lpush', owner)
    else
        reply = enter(place, redissons_ahead, 'linsert', 'after', all[place], owner)
    end
    for i = place + 1, reply[1] and last or 0 do
        redis.call('zadd', timeouts, least, all[i])
    end
    return reply
end

local place = was_queued and redis.call('lpos', queue, owner)
if place then
    return queued(place, place == 0 and 0 or redissons())
elseif was_queued then
    return come_back()
end
local ahead = redissons()
return enter(nil, ahead, 'rpush', owner)
