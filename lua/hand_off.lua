-- Stands behind prelude.lua and before every script of a lock that one process hands to the next:
-- the queue of processes, the messages to them, and the window for clients outside the queue.
-- docs/hand-off.md has the reasons. lock/holder.lua or read_write/holders.lua stands behind this
-- file.
--
-- KEYS 1 the lock, 2 the queue, 3 the window
-- ARGV differ from script to script. Each script sets `database` (its number, an argument only if
--      it is not 0) and, if it may release, `public`, the lock's public channel.
--
-- The queue is a list of owners, one for each waiting process, the first in line first.
local lock, queue, window = KEYS[1], KEYS[2], KEYS[3]
local public, database

-- In ms: the length of a window, in which the lock is left to clients that know only the public
-- channel; the age from which on a chain may open a window.
local WINDOW, AGE = 4, 10
-- The time for which the queue outlives the last request. (It is text, so the server need not
-- convert a number.)
local KEPT = '60000'
-- In ms: the time for which an entry counts as alive after its owner's last request (a waiter asks
-- at least every 1.2 s); the age at which a request shows that the server stood still.
local HEARD, PROMPT = 2000, 400

-- Fails on a replica, and changes nothing on a master. A replica may have an old state of the lock.
-- A client that relied on this state would leave its hold at the master.
local function ensure_master()
    redis.call('lrem', queue, 1, '')
end

local function length()
    return redis.call('llen', queue)
end

-- Returns a refusal if the user may not run this command, otherwise nil. Before its first change, a
-- script calls this for the commands that come later.
local function denied(command, key, ...)
    if not redis.acl_check_cmd(command, key, ...) then
        return redis.error_reply('NOPERM the user may not run ' .. string.upper(command) .. ' ' .. key)
    end
end

-- Returns a refusal if the user may not run the commands that grant the lock to waiters, otherwise
-- nil. (The caller has called `length` before, which fails if the queue's key holds other data.)
local function stuck()
    now()
    return denied('lpop', queue) or denied('hset', lock, '', '')
        or denied('pubsub', 'numsub', '') or denied('publish', own_channel(''), '')
end

-- The key that exists while an entry counts as alive. Its value is the time at which the owner
-- came. Only a repeated request writes the key, so a first request and a hand-off need no command
-- for it.
local function asked_key(owner)
    return (string.gsub(queue, 'queue', 'asked', 1)) .. ':' .. owner
end

-- Makes a new entry for an owner that came at the time `came` and has lost its entry: before the
-- entries of owners that came later, but behind each entry whose owner is known to have come
-- earlier. Returns its position, or nil if the entry belongs at the end. If this owner came HEARD
-- ago or more, an entry without an "asked" key counts as later, too: an owner that came earlier
-- would have asked again by now.
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

-- Returns three values: the owner's position; 1 if its entry is new, else 0; whether the queue was
-- empty before. An owner without an entry gets one at the end. `came`: nil in the owner's first
-- request, later the time at which it began to wait, by the server's clock. Commands that may be
-- refused run before the entry is added. The first PEXPIRE also makes room: after a command that
-- writes, the server refuses no command for lack of memory.
local function stand(owner, came)
    local place = redis.call('lpos', queue, owner)
    local exists = redis.call('pexpire', queue, KEPT)
    if came then
        redis.call('set', asked_key(owner), string.format('%.0f', came), 'px', HEARD)
    end
    if place then
        return place, 0
    end
    local back = came and come_back(owner, came)
    place = back or redis.call('rpush', queue, owner) - 1
    if exists == 0 then
        redis.call('pexpire', queue, KEPT)
    end
    return place, 1, not back and place == 0
end

-- Removes the silent entries ahead of `asker`. The caller has found the lock free although entries
-- wait: a grant was not used, or the holder died. Without this, each silent entry in turn would be
-- granted the lock for PROVISIONAL. An entry is silent if its owner has sent no request for HEARD,
-- while the server answered the asker. `sent`: the server's time at which the client sent this
-- request, as the client reckons it; nil if the server has not answered the client promptly for
-- HEARD. If the request arrives late, the server stood still or its clock jumped. Then requests of
-- other owners may still be on the way, so no entry counts as silent.
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

-- Returns the owner's channel, or nil if its process does not listen. PUBLISH alone would count
-- another client's pattern subscription, so a dead process would look alive.
local function channel_of(owner)
    local channel = own_channel(owner)
    return redis.call('pubsub', 'numsub', channel)[2] > 0 and channel or nil
end

local function tell(channel, owner, verb, details)
    local number = string.match(owner, '^%d+', 38) or ''
    redis.call('publish', channel, table.concat({verb, number, details, database, lock}, ' '))
end

-- Returns the time left of an open window, or nil. A key that lasts longer than WINDOW does not
-- count: the server's clock was set back.
local function window_left()
    local left = redis.pcall('pttl', window)
    return type(left) == 'number' and left > 0 and left <= WINDOW and left or nil
end

-- Sends the first process in the queue that listens a message to ask in `left` ms, when the window
-- ends, or at once (0). Without the message no process would ask. Removes the entries in front of
-- that process, but keeps the entry of `asker`: the subscription of the asker may be on the way,
-- and the asker asks again once that is confirmed.
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

-- Publishes on the public channel that the lock is free. Returns whether the server refused the
-- message. In that case the lock is free all the same, and Redisson's waiters sleep on, at most
-- until the end of the lease that they know.
local function is_muted(message)
    return type(redis.pcall('publish', public, message)) == 'table'
end

-- Hands on a lock that was just freed. The releasing script itself grants the lock, so a hand-off
-- costs two scripts and one message for any number of waiters. A message to all waiters would make
-- all of them ask, and one would get the lock. Returns 1: `grant` made the next process the owner;
-- 2: a window is open, in which other clients may take the lock; 0: the lock is free, and `message`
-- was published on the public channel; 3: as 0, and the chain ends, since no other client listens;
-- 5: as 0, 2 or 3, but the server refused the message. The chain travels with the grant and comes
-- back with the release. `since`: if above 0, the server's time in ms at which the chain began;
-- otherwise minus the chain's age in ms. `count`: how many times a process of ours got the lock in
-- this chain.
local function hand_on(since, count, message, grant)
    local start, reply = math.max(since > 0 and since or now() + since, 0), 0
    -- If the chain began in the future, the server's clock was set back.
    local age = since > 0 and math.abs(now() - since) or -since
    if age >= AGE then
        -- The number of Redisson's clients that wait: the listeners of the public channel without
        -- ours, which also listen to the second channel.
        local heard = redis.pcall('pubsub', 'numsub', public, public .. ':redlatch')
        local others = refused(heard) and 0 or heard[2] - heard[4]
        -- Each of Redisson's clients gets one turn in the time in which each of our processes
        -- (those that wait, and the one that leaves) gets one. If only the age counted, Redisson's
        -- clients would get many times their share when holds are long.
        if others > 0 and count * others > length() then
            -- A key at the server opens the window, since the next request of this process may be
            -- in the same packet and must find the window open.
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
