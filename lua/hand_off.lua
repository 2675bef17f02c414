-- Prepended to every script of a lock or a read-write lock, after prelude.lua and before
-- lock/holder.lua or read_write/holders.lua. This part has the queue of processes, the messages to
-- these processes, and the window for Redisson's clients, which do not queue. docs/hand-off.md has
-- the reasons.
--
-- KEYS 1 the lock, 2 the queue, 3 the window
-- ARGV differ from script to script. Each script sets `database`, the number of the database (an
--      argument only if it is not 0). A script that may release the lock also sets `public`, the
--      lock's public channel.
--
-- The queue is a list of owners, one for each waiting process. The owner at the head is the next to
-- get the lock.
local lock, queue, window = KEYS[1], KEYS[2], KEYS[3]
local public, database

-- In ms: the length of a window, in which only Redisson's clients take the lock; the least age of a
-- chain that may open a window.
local WINDOW, AGE = 4, 10
-- The queue's time to live in ms, counted from the last request. (The value is a string, so that
-- the server need not convert a number.)
local KEPT = '60000'
-- In ms. HEARD: how long an entry counts as alive after its owner's last request. (A waiter sends a
-- request at least every 1.2 s.) PROMPT: only a request that is at most this old may remove silent
-- entries (`pass_silent`).
local HEARD, PROMPT = 2000, 400

-- Fails on a replica, and changes nothing on a master. If a replica told a client that the client
-- does not have the lock, the client would not release its hold at the master.
local function ensure_master()
    redis.call('lrem', queue, 1, '')
end

local function length()
    return redis.call('llen', queue)
end

-- Returns a refusal if the user may not run this command, otherwise nil. A script checks its later
-- commands in this way before its first change.
local function denied(command, key, ...)
    if not redis.acl_check_cmd(command, key, ...) then
        return redis.error_reply('NOPERM the user may not run ' .. string.upper(command) .. ' ' .. key)
    end
end

-- Returns a refusal if the user may not run the commands that grant the lock to waiters, otherwise
-- nil. (The caller has already called `length`, which fails if the queue's key holds another type.)
local function stuck()
    now()
    return denied('lpop', queue) or denied('hset', lock, '', '')
        or denied('pubsub', 'numsub', '') or denied('publish', own_channel(''), '')
end

-- The key that exists while an entry counts as alive. The value of this key is the time at which
-- the owner began to wait. Only an owner's second and later requests write the key.
local function asked_key(owner)
    return (string.gsub(queue, 'queue', 'asked', 1)) .. ':' .. owner
end

-- Makes a new entry for an owner that lost its entry and began to wait at the time `came`. The new
-- entry goes in front of the entries of owners that came later, but behind each entry whose owner
-- is known to have come earlier. Returns the position of the new entry, or nil if the entry belongs
-- at the end. If `came` is HEARD ago or more, an entry without an "asked" key counts as later,
-- because an owner that came earlier would have asked again by now.
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

-- Adds `owner` to the queue if the queue has no entry of it. Returns three values: the owner's
-- position; 1 if its entry is new, else 0; whether the queue was empty before. `came`: nil in the
-- owner's first request, and in later requests the server's time at which the owner began to wait.
-- Commands that may be refused run before the entry is added. The first PEXPIRE also prevents an
-- OOM error: once a script has written, the server refuses none of its commands for lack of memory.
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

-- Removes the silent entries ahead of `asker`. The caller has found the lock free while the queue
-- has entries: an owner did not use its grant, or the holder died. If silent entries remained, each
-- of them in turn would be granted the lock for PROVISIONAL ms. An entry is silent if its owner has
-- sent no request for HEARD ms, while the server answered the asker. `sent`: the server's time at
-- which the client sent this request, as the client estimates it; nil if the server did not answer
-- the client promptly in the last HEARD ms. If the asker's request is late, the server stood still
-- or its clock jumped. In that case requests of other owners may be late, too, so no entry counts
-- as silent.
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

-- Returns the owner's channel, or nil if its process does not listen. (The number that PUBLISH
-- returns includes pattern subscriptions of other clients, so it does not show whether the process
-- is alive.)
local function channel_of(owner)
    local channel = own_channel(owner)
    return redis.call('pubsub', 'numsub', channel)[2] > 0 and channel or nil
end

local function tell(channel, owner, verb, details)
    local number = string.match(owner, '^%d+', 38) or ''
    redis.call('publish', channel, table.concat({verb, number, details, database, lock}, ' '))
end

-- Returns the time left of an open window, or nil. If the key lasts longer than WINDOW, the
-- server's clock was set back, and no window counts as open.
local function window_left()
    local left = redis.pcall('pttl', window)
    return type(left) == 'number' and left > 0 and left <= WINDOW and left or nil
end

-- Sends a message to the first process in the queue that listens. The message tells the process to
-- ask in `left` ms, when the window ends; 0 means at once. Without the message no process would
-- ask. Removes the entries in front of that process, except the entry of `asker`. The asker's
-- subscription may still be on its way to the server, and the asker asks again after the server has
-- confirmed it.
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
-- message. After a refusal, the lock is free nevertheless, but Redisson's waiters sleep until the
-- end of the lease that they have read.
local function is_muted(message)
    return type(redis.pcall('publish', public, message)) == 'table'
end

-- Hands on a lock that the script has just freed. The releasing script itself grants the lock, so a
-- hand-off costs two scripts and one message for any number of waiters. Returns 1: `grant` made the
-- next process the owner; 2: a window is open, in which Redisson's clients may take the lock; 0:
-- the lock is free, and `message` was published on the public channel; 3: as 0, and the chain ends,
-- because no Redisson client listens; 5: as 0, 2 or 3, but the server refused the message. A grant
-- gives the chain's data to the new owner, whose release gives them back in `since` and `count`.
-- `since`: if above 0, the server's time in ms at which the chain began; otherwise minus the
-- chain's age in ms. `count`: how many times one of redlatch's processes got the lock in this
-- chain.
local function hand_on(since, count, message, grant)
    local start, reply = math.max(since > 0 and since or now() + since, 0), 0
    -- If the chain began in the future, the server's clock was set back.
    local age = since > 0 and math.abs(now() - since) or -since
    if age >= AGE then
        -- The number of Redisson's clients that wait: all listeners to the public channel, less
        -- redlatch's clients, which also listen to the second channel.
        local heard = redis.pcall('pubsub', 'numsub', public, public .. ':redlatch')
        local others = refused(heard) and 0 or heard[2] - heard[4]
        -- In the time in which each redlatch process gets the lock once, each Redisson client gets
        -- the lock once, too. The redlatch processes are the waiters and the process that releases.
        -- If only the age decided, Redisson's clients would get many times their share when holds
        -- are long.
        if others > 0 and count * others > length() then
            -- The window must be a key at the server: the next request of this process may be in
            -- the same packet and must find the window open.
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
