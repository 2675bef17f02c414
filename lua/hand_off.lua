-- Stands behind prelude.lua and before every script of a lock that one process hands to the next:
-- the queue of processes, the messages to them, and the window for clients outside the queue.
-- docs/hand-off.md has the reasons. The lock's holders come after it: lock/holder.lua or
-- read_write/holders.lua.
--
-- KEYS 1 the lock, 2 the queue, 3 the window
-- ARGV are each script's own. It sets `database` (its number, which is sent if it is not 0), and,
--      if it may release, `public`, the lock's public channel: an argument that is not sent costs
--      nothing.
--
-- The queue is a list of owners, one for each waiting process, the first in line first.
local lock, queue, window = KEYS[1], KEYS[2], KEYS[3]
local public, database

-- All in ms. How long a lock is left to clients that know only the public channel, and how long ours
-- hand it on among themselves at least before that.
local WINDOW, AGE = 4, 10
-- How long the queue outlives the last request. (As text, which the server need not make of it.)
local KEPT = '60000'
-- How long an entry counts as heard of after its last request: a waiter asks every 1.2 s at the
-- latest. And how long a request may have been on its way without suspicion that the server stood
-- still.
local HEARD, PROMPT = 2000, 400

-- A replica refuses this command, which changes nothing. A replica knows a lock as its master knew
-- it some time ago: a client that believed it would leave the master's hold behind.
local function ensure_master()
    redis.call('lrem', queue, 1, '')
end

local function length()
    return redis.call('llen', queue)
end

-- A refusal if the user may not run this command; nil: the user may. A script asks before a change
-- for the commands behind it.
local function denied(command, key, ...)
    if not redis.acl_check_cmd(command, key, ...) then
        return redis.error_reply('NOPERM the user may not run ' .. string.upper(command) .. ' ' .. key)
    end
end

-- The reason why this user may not grant the lock to waiters; nil: none. (The caller has asked for
-- the length: any other data under the queue's key is an error, too.)
local function stuck()
    now()
    return denied('lpop', queue) or denied('hset', lock, '', '')
        or denied('pubsub', 'numsub', '') or denied('publish', own_channel(''), '')
end

-- A key that exists while an entry counts as heard of, with the time at which its owner came. Only
-- a repeated request writes it: it would cost each first request and each hand-off a command.
local function asked_key(owner)
    return (string.gsub(queue, 'queue', 'asked', 1)) .. ':' .. owner
end

-- Gives an owner that came at that time, and has lost its entry since, an entry in front of those
-- that came later, but behind each that is known to have come earlier: its position; nil if that is
-- the end. An owner that has not asked again came later as well, if it would have asked by now.
local function come_back(owner, came)
    local is_old = now() - came >= HEARD
    local place, first
    for i = length() - 1, 0, -1 do
        local other = redis.call('lindex', queue, i)
        local since = redis.call('get', asked_key(other))
        if since and tonumber(since) > came or not since and is_old then
            place, first = i, other
        elseif since then
            break
        end
    end
    return first and redis.call('linsert', queue, 'before', first, owner) and place
end

-- The owner's position, at the end of the queue if it had none; and 1 if that is new. `came`: it
-- asks again, and has waited since then, by the server's clock. Commands that may be refused come
-- before the entry. The first PEXPIRE also makes room: after a command that writes, memory is no
-- reason to refuse.
local function stand(owner, came)
    local place = redis.call('lpos', queue, owner)
    local exists = redis.call('pexpire', queue, KEPT)
    if came then
        redis.call('set', asked_key(owner), string.format('%.0f', came), 'px', HEARD)
    end
    if place then
        return place, 0
    end
    place = came and come_back(owner, came) or redis.call('rpush', queue, owner) - 1
    if exists == 0 then
        redis.call('pexpire', queue, KEPT)
    end
    return place, 1
end

-- The lock is free though entries wait: a grant was not used, or its holder has died. Takes the
-- entries ahead of `asker` out of the queue that have not asked for HEARD, though the server has
-- answered the asker all the while: otherwise each of them would be granted the lock for
-- PROVISIONAL. `sent`: the server's clock when the request was sent, as reckoned by a client that
-- the server has answered promptly for HEARD; nil: it has not. A request that came late shows that
-- the server, or its clock, stood still or jumped: the others' requests may be behind it.
local function pass_silent(asker, sent)
    if not sent or math.abs(now() - sent) > PROMPT then
        return
    end
    local place = 0
    while true do
        local other = redis.call('lindex', queue, place)
        if not other or other == asker then
            return
        elseif redis.call('exists', asked_key(other)) == 1 then
            place = place + 1
        else
            redis.call('lrem', queue, 1, other)
        end
    end
end

-- That channel; nil if the process does not listen. PUBLISH alone would count another client's
-- pattern subscription, and a dead process would look alive.
local function channel_of(owner)
    local channel = own_channel(owner)
    return redis.call('pubsub', 'numsub', channel)[2] > 0 and channel or nil
end

-- Sends `owner` a message on that channel.
local function tell(channel, owner, verb, details)
    local number = string.match(owner, '^%d+', 38) or ''
    redis.call('publish', channel, table.concat({verb, number, details, database, lock}, ' '))
end

-- The rest of an open window. A key that lasts longer than a window is none: the server's clock was
-- set back.
local function window_left()
    local left = redis.pcall('pttl', window)
    return type(left) == 'number' and left > 0 and left <= WINDOW and left or nil
end

-- Tells the first process that listens to ask when the window ends, or at once (0): no other
-- process would. `asker` keeps its entry: its subscription may be on the way, and it asks again
-- once that is confirmed.
local function announce(left, asker)
    while true do
        local head = redis.call('lindex', queue, 0)
        local channel = head and channel_of(head)
        if channel then
            tell(channel, head, 'open', left)
        end
        if channel or not head or head == asker then
            return
        end
        redis.call('lpop', queue)
    end
end

-- Says in public that the lock is free; returns whether the server refused that. Then the lock is
-- free all the same: clients of Redisson's that wait sleep until the end of its lease at most.
local function is_muted(message)
    return type(redis.pcall('publish', public, message)) == 'table'
end

-- The release grants, which costs two scripts and one message for any number of waiters. If it woke
-- them all, all would ask and one would get the lock. Hands on a lock that was set free. 1: `grant`
-- made the next process its owner. 2: it is left to others for a window. 0: free, and `message`
-- says so in public; 3: the same, and the chain ends, since no other client listens; 5: as
-- 0, but the message was refused. The chain is the time since when ours have had the lock without a window (ms; not above zero: minus
-- its age), and how many of them; it travels with the grant and comes back with the release.
local function hand_on(since, count, message, grant)
    local start, reply = math.max(since > 0 and since or now() + since, 0), 0
    -- A chain from the future: the clock was set back.
    local age = since > 0 and math.abs(now() - since) or -since
    if age >= AGE then
        -- How many clients of Redisson's wait. Ours that listen there listen to the second channel,
        -- too.
        local heard = redis.pcall('pubsub', 'numsub', public, public .. ':redlatch')
        local others = refused(heard) and 0 or heard[2] - heard[4]
        -- Each of them gets a turn while each of ours does, the waiters and the leaving one. By age
        -- alone they got many times their share of long holds.
        if others > 0 and count * others > length() then
            -- Kept by the server: the next request of this process may be in the same packet.
            redis.pcall('set', window, '', 'px', WINDOW)
            local muted = is_muted(message)
            pcall(announce, WINDOW)
            return muted and 5 or 2
        elseif others == 0 then
            start, count, reply = now(), 0, 3
        end
    end
    if length() > 0 and grant(start, count + 1) then
        return 1
    end
    return is_muted(message) and 5 or reply
end
