-- Stands before every script of a lock that one process hands to the next, but lock/renew.lua and
-- lock/owners.lua: the queue of processes, what they are told, and the window for those who are not in
-- it. docs/hand-off.md has the reasons. Behind it stands what a lock's holders are: lock/holder.lua or
-- read_write/holders.lua.
--
-- KEYS 1 the lock, 2 the queue, 3 the window
-- ARGV are each script's own. It sets `database` (its number, which is sent if it is not 0), and, if
-- it may release, `public`, the lock's public channel: what is not sent costs nothing.
--
-- The queue is a list of owners, one for each process that waits, the first in line first.
-- What the queue needs is asked with `pcall`: who is refused a command has no place, and waits on the
-- public channel.
local lock, queue, window = KEYS[1], KEYS[2], KEYS[3]
local public, database

-- All in ms. How long a lock is granted for by message: its process may be stopped, and must say
-- that it is not before it gets the whole lease.
local PROVISIONAL = 2000
-- How long a lock is left to those who know the public channel only, and how long ours hand it on
-- among themselves at least before that. BLIND: where nobody may ask who listens.
local WINDOW, AGE, BLIND = 4, 10, 100
-- How long the queue outlives the last question.
local KEPT = 60000
-- So long after its last question a place counts as heard of: who waits asks every 1.2 s at the latest.
-- And so long a question may have been on its way of which the server's silence says nothing.
local HEARD, PROMPT = 2000, 400

local function refused(reply)
    return type(reply) == 'table' and reply.err and reply or nil
end

local function is_ours(owner)
    return string.sub(owner, 15, 15) == '8'
end

-- The server's clock in ms, at the first look; 0: the right to TIME is missing.
local time
local function now()
    if not time then
        local clock = redis.pcall('time')
        time = refused(clock) and 0 or clock[1] * 1000 + math.floor(clock[2] / 1000)
    end
    return time
end

-- A replica takes no writes at all: that is the script's error. What it knows of a lock is what its
-- master knew some time ago: whoever took its word would leave what the master has, or wait for it
-- there until that lapses.
-- (HDEL of no owner changes nothing. Who may not use it is not told.)
local function ensure_master()
    local tried = refused(redis.pcall('hdel', lock, ''))
    if tried and string.find(tried.err, 'READONLY', 1, true) then
        redis.call('hdel', lock, '')
    end
end

local function length()
    local places = redis.pcall('llen', queue)
    return type(places) == 'number' and places or 0
end

-- Puts an owner at one end of the queue: nil and its place, or the refusal and nothing done. The
-- first PEXPIRE is refused before the push where a later one would be refused after it. It also
-- makes room: after a command that writes, memory is no reason to refuse.
local function enqueue(push, owner)
    local exists = redis.pcall('pexpire', queue, KEPT)
    if refused(exists) then
        return exists
    end
    local places = redis.pcall(push, queue, owner)
    if refused(places) then
        return places
    end
    if exists == 0 then
        redis.call('pexpire', queue, KEPT)
    end
    return nil, places - 1
end

-- Why nobody may be taken off the queue; nil: one may. Whoever is taken off may have to be put back, and
-- `enqueue` needs PEXPIRE and LPUSH.
local function stuck()
    if not redis.acl_check_cmd('pexpire', queue, KEPT) then
        return redis.error_reply('NOPERM the user may not run PEXPIRE on the queue')
    elseif not redis.acl_check_cmd('lpush', queue, '') then
        return redis.error_reply('NOPERM the user may not run LPUSH on the queue')
    end
end

-- A key that is there while a place counts as heard of, with the time at which it came. Only who asks
-- again writes it: it would cost each first question and each hand-off a command.
local function asked_key(owner)
    return (string.gsub(queue, 'queue', 'asked', 1)) .. ':' .. owner
end

-- This owner, which came at that time, has asked again. (Behind a command that has written: memory must
-- not make the living look silent.)
local function hear(owner, came)
    redis.pcall('set', asked_key(owner), string.format('%.0f', came), 'px', HEARD)
end

-- Gives an owner that came at that time, and lost its place since, one in front of those that came
-- later, but behind each that is known to have come earlier: its place and 1; nil if that is the end, or
-- where that is refused.
-- An owner that has not asked again came later as well, if it would have asked by now.
local function come_back(owner, came)
    local is_old = now() - came >= HEARD
    local place, first
    for i = length() - 1, 0, -1 do
        local other = redis.pcall('lindex', queue, i)
        local since = type(other) == 'string' and redis.pcall('get', asked_key(other))
        if type(other) ~= 'string' or refused(since) then
            return nil
        elseif since and tonumber(since) > came or not since and is_old then
            place, first = i, other
        elseif since then
            break
        end
    end
    local trouble = not first
        or refused(redis.pcall('pexpire', queue, KEPT))
        or refused(redis.pcall('linsert', queue, 'before', first, owner))
    return not trouble and place or nil, 1
end

-- The owner's place, at the end of the queue if it had none: place, 1 if that is new, and why there
-- is none (-1). `came`: it asks again, and has waited since then, by the server's clock.
local function stand(owner, came)
    local place = redis.pcall('lpos', queue, owner)
    if refused(place) then
        return -1, 0, place.err
    elseif place then
        local trouble = refused(redis.pcall('pexpire', queue, KEPT))
        if came then
            hear(owner, came)
        end
        return place, 0, trouble and trouble.err
    end
    if came then
        local again, fresh = come_back(owner, came)
        if again then
            hear(owner, came)
            return again, fresh
        end
    end
    local trouble, last = enqueue('rpush', owner)
    if trouble then
        return -1, 0, trouble.err
    end
    if came then
        hear(owner, came)
    end
    return last, 1
end

-- The lock is free though places wait: a grant was not used, or its holder has died. Takes the places
-- ahead of `asker` out of the queue that have not asked for HEARD, though the server has answered the
-- asker all the while: or each of them would be granted the lock for PROVISIONAL.
-- `sent`: what the server's clock showed when the question was sent, by the reckoning of a client that
-- the server has answered promptly for HEARD; nil: it has not. A question that came late shows that the
-- server, or its clock, stood still or jumped: those of others may be behind it.
local function pass_silent(asker, sent)
    if not sent or math.abs(now() - sent) > PROMPT then
        return
    end
    local place = 0
    while true do
        local other = redis.pcall('lindex', queue, place)
        if type(other) ~= 'string' or other == asker then
            return
        elseif redis.pcall('exists', asked_key(other)) ~= 0 then
            place = place + 1
        elseif refused(redis.pcall('lrem', queue, 1, other)) then
            return
        end
    end
end

-- The channel on which the process of `owner` is told something; nil if it does not listen. Where nobody
-- may ask it counts as listening. PUBLISH alone would count somebody's pattern subscription, and a dead
-- process would look alive.
local function channel_of(owner)
    local channel = 'redisson_lock__channel:{redlatch:' .. string.sub(owner, 1, 36) .. '}'
    local heard = redis.pcall('pubsub', 'numsub', channel)
    return (refused(heard) or heard[2] > 0) and channel or nil
end

-- Tells `owner` something on that channel; how many heard it, or the refusal.
local function tell(channel, owner, verb, details)
    local number = string.match(owner, '^%d+', 38) or ''
    return redis.pcall('publish', channel,
        table.concat({verb, number, details, database, lock}, ' '))
end

-- What is left of an open window. One that lasts longer than a window is none: the server's clock
-- was set back.
local function window_left()
    local left = redis.pcall('pttl', window)
    return type(left) == 'number' and left > 0 and left <= WINDOW and left or nil
end

-- Tells the first that listens to ask when the window ends, or at once (0): nobody else would. `asker`
-- keeps its place: its subscription may be on the way, and it asks when that is there.
local function announce(left, asker)
    while true do
        local head = redis.pcall('lindex', queue, 0)
        local channel = type(head) == 'string' and channel_of(head)
        if channel then
            tell(channel, head, 'open', left)
            return
        elseif type(head) ~= 'string' or head == asker
            or type(redis.pcall('lpop', queue)) ~= 'string' then
            return
        end
    end
end

-- The release grants, which costs two scripts and one message, however many wait. If it woke them
-- all, all would ask and one would get the lock.
-- A lock was set free: who is next? 1: `grant` made the next process its owner. 2: it is left to
-- others for a window. 0: free, and told so in public by `message`; 3: the same, and the chain ends,
-- since nobody else listens. -1: free, and that was refused.
-- The chain is since when ours have had the lock without a window (ms; not above zero: minus its
-- age), and how many of them; it travels with the grant and comes back with the release.
local function hand_on(since, count, message, grant)
    local start, reply = math.max(since > 0 and since or now() + since, 0), 0
    -- A chain from the time to come: the clock was set back.
    local age = since > 0 and math.abs(now() - since) or -since
    if age >= AGE then
        -- How many wait who hear a public release only: Redisson's clients, and ours without a place.
        -- Ours with a place that listen there listen to the second channel, too. nil: nobody may ask.
        local heard = redis.pcall('pubsub', 'numsub', public, public .. ':redlatch')
        local others = not refused(heard) and heard[2] - heard[4] or nil
        -- Each of them gets a turn while each of ours does, those who wait and the one that leaves. By
        -- age alone they got many times their share of long holds.
        local is_due = age >= BLIND
        if others then
            is_due = others > 0 and count * others > length()
        end
        if is_due then
            -- Kept by the server: the next request of this process may be in the same packet.
            redis.pcall('set', window, '', 'px', WINDOW)
            if not refused(redis.pcall('publish', public, message)) then
                announce(WINDOW)
                return 2
            end
            redis.pcall('del', window)
        elseif others == 0 then
            start, count, reply = now(), 0, 3
        end
    end
    if grant(start, count + 1) then
        return 1
    end
    return refused(redis.pcall('publish', public, message)) and -1 or reply
end
