-- Takes a fair lock, or a place in its queue.
--
-- KEYS and ARGV 1 to 3: line.lua
-- ARGV 4 lease in ms, 5 owner, 6 whether an earlier request of this owner was answered "queued" (1)
--      or not (0), 7.. with that: the owners of the same client that came before it and wait
-- reply: {1, followers} = taken; the followers are the numbers of those of the same client that
--        stand directly behind, in their order, parted by commas, or '-'
--        {0, now, ask, redisson} = queued; now = the server's time in ms; ask = ms after which it may
--        ask again unless told before (-1: only when told); redisson = 1 if one of Redisson's may be
--        who tells it, on the owner's own channel: it holds the lock, or (at the first request) stands
--        ahead
--
-- The owner names one acquisition, so the request may be sent again: a holder is granted again, a
-- waiter stays where it is. A waiter that was queued and is not in the queue was dropped from its
-- head while it did not listen, or could not say that it lives: it goes back there, not to the end.
-- With it go those of its client that came before it, whoever of them is the first to ask.
-- A score holds time for Redisson's waiters ahead, none for ours, and a grant shifts nobody
-- (README.md, "Scores"). While the lock is held nobody is dropped: a dead waiter costs nothing yet,
-- and one that was only stopped may come back.
local lease, owner, was_queued = ARGV[4], ARGV[5], ARGV[6] == '1'
-- One of Redisson's at the head of a free lock was told so. If it has not come after this long, it is
-- told again.
local hesitation = 1000

local held_by, left, foreign = holder()
if foreign then
    return foreign
elseif held_by == owner then
    raise(left, lease)
    return {1, '-'}
end

-- How many waiters of Redisson's are in the queue. The highest score tells, if a live one of ours
-- has it: it lies within the fair wait above so many times Redisson's wait, and no waiter of
-- Redisson's stands behind, or that one would have the highest.
local function redissons()
    local top = redis.call('zrevrange', timeouts, 0, 0, 'withscores')
    if not top[1] then
        return 0
    end
    local above = tonumber(top[2]) - now()
    local rest = above % REDISSON_WAIT
    if above > 0 and ours(top[1]) and rest <= fair_wait and rest >= fair_wait / 2 then
        return math.floor(above / REDISSON_WAIT)
    end
    local count = 0
    for _, id in ipairs(redis.call('lrange', queue, 0, -1)) do
        count = count + (ours(id) and 0 or 1)
    end
    return count
end

-- Into the set and the list, or into neither; its place. A score that is there stays: what Redisson's
-- waiters behind have is measured from it.
local function enter(id, redissons_ahead, command, ...)
    local score = now() + fair_wait + REDISSON_WAIT * redissons_ahead
    local new = redis.call('zadd', timeouts, 'nx', score, id)
    local there = new == 0 and redis.call('lpos', queue, id)
    if there then
        return there
    end
    local length = redis.pcall(command, queue, ...)
    if type(length) == 'table' then
        redis.pcall('zrem', timeouts, id)
        fail(length)
    end
    return length - 1
end

-- Back to the head: before everybody, but behind those of the own client that came earlier, who
-- were dropped too and came back first. (None of Redisson's is ahead of these.)
local function come_back(back)
    local all = redis.call('lrange', queue, 0, -1)
    local place = 0
    for i, id in ipairs(all) do
        if not ours(id) then
            break
        elseif client(id) == client(back) and tonumber(number(id)) < tonumber(number(back)) then
            place = i
        end
    end
    -- What `redissons` relies on: Redisson's waiters have a higher score than ours ahead of them.
    local least = now() + fair_wait + 1
    local last = place
    while all[last + 1] and not ours(all[last + 1]) do
        local score = redis.call('zscore', timeouts, all[last + 1])
        if not score or tonumber(score) >= least then
            break
        end
        last = last + 1
    end
    -- It was here before: that there is no memory is no reason to refuse it.
    redis.call('zrem', timeouts, back)
    if place == 0 then
        enter(back, 0, 'lpush', back)
    else
        enter(back, 0, 'linsert', 'after', all[place], back)
    end
    for i = place + 1, last do
        redis.call('zadd', timeouts, least, all[i])
    end
end

local older = {}
if was_queued and not redis.call('lpos', queue, owner) then
    for i = 7, #ARGV do
        older[ARGV[i]] = true
        if ARGV[i] ~= held_by and not redis.call('lpos', queue, ARGV[i]) then
            come_back(ARGV[i])
        end
    end
    come_back(owner)
end

if not held_by then
    local head, granted, dropped = hand_on({[owner] = true}, older)
    if granted then
        held_by, left = head, PROVISIONAL
    elseif head == owner or not head then
        if head then
            -- It waits already: that there is no memory is no reason to refuse it.
            redis.call('zrem', timeouts, '')
            seat(owner, lease)
        else
            take_anew(owner, lease)
        end
        local behind = redis.call('lrange', queue, 0, FOLLOWERS - 1)
        -- Nobody is told when a lock lapses: of a lease that keep_alive may come too late for, the
        -- new head must hear now.
        if behind[1] and tonumber(lease) < fair_wait then
            tell(behind[1])
        end
        return {1, followers(owner, behind, 1)}
    elseif dropped or was_queued then
        -- Who asks again has waited in vain for it to come: it missed its message.
        tell(head)
    end
end

-- Who was queued has heard what Redisson's stand ahead, and who comes back stands before them.
local redissons_ahead = was_queued and 0 or redissons()
local place
if was_queued then
    place = redis.call('lpos', queue, owner)
else
    place = enter(owner, redissons_ahead, 'rpush', owner)
end
local ask = -1
if held_by and place == 0 then
    ask = math.max(1, left)
elseif not held_by and place == 1 then
    ask = hesitation
end
local redisson = held_by and not ours(held_by) or redissons_ahead > 0
return {0, now(), ask, redisson and 1 or 0}
