-- Prepended to most scripts of a lock or a read-write lock, after prelude.lua and before
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
local WINDOW, MIN_CHAIN_AGE = 4, 10
-- The queue's time to live in ms, counted from the last request. (The value is a string, so that
-- the server need not convert a number.)
local QUEUE_TTL = '60000'
-- In ms. ALIVE_FOR: an entry is taken as alive for this time after its owner's last request. (A
-- waiter sends a request at least every 1.2 s.) MAX_REQUEST_AGE: only a request that is at most
-- this old may remove silent entries (`remove_silent`).
local ALIVE_FOR, MAX_REQUEST_AGE = 2000, 400

-- Fails on a replica, and changes nothing on a master. A replica must not tell a client that the
-- client does not have the lock: the client would then not release its hold at the master.
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
local function denied_grant()
    now()
    return denied('lpop', queue) or denied('hset', lock, '', '')
        or denied('pubsub', 'numsub', '') or denied('publish', own_channel(''), '')
end

-- The key that exists while an entry is taken as alive. Its value is the time at which the owner
-- began to wait. Only an owner's second and later requests write the key.
local function asked_key(owner)
    return (string.gsub(queue, 'queue', 'asked', 1)) .. ':' .. owner
end

-- Makes a new entry for an owner that lost its entry and began to wait at the time `waiting_since`.
-- The new entry goes in front of the entries of owners that came later, but behind each entry whose
-- owner is known to have come earlier. Returns the position of the new entry, or nil if the entry
-- belongs at the end. If `waiting_since` is ALIVE_FOR ago or more, an entry without an "asked" key
-- is taken as later, because an earlier owner would have sent another request by now.
local function requeue(owner, waiting_since)
    local waited_long = now() - waiting_since >= ALIVE_FOR
    local place, first
    for i = length() - 1, 0, -1 do
        local other = redis.call('lindex', queue, i)
        local other_since = redis.call('get', asked_key(other))
        if other_since and tonumber(other_since) > waiting_since
            or not other_since and waited_long
        then
            place, first = i, other
        elseif other_since then
            break
        end
    end
    return first and redis.call('linsert', queue, 'before', first, owner) and place
end

-- Adds `owner` to the queue if the queue has no entry of it. Returns three values: the owner's
-- position; 1 if its entry is new, else 0; whether the queue was empty before. `waiting_since`: nil
-- in the owner's first request, and in later requests the server's time at which the owner began to
-- wait. Commands that may be refused run before the entry is added. The first PEXPIRE also prevents
-- an OOM error: after a script's first write, the server refuses no command of this script for lack
-- of memory.
local function enqueue(owner, waiting_since)
    local place = redis.call('lpos', queue, owner)
    local exists = redis.call('pexpire', queue, QUEUE_TTL)
    if waiting_since then
        redis.call('set', asked_key(owner), string.format('%.0f', waiting_since), 'px', ALIVE_FOR)
    end
    if place then
        return place, 0
    end
    local requeued_at = waiting_since and requeue(owner, waiting_since)
    place = requeued_at or redis.call('rpush', queue, owner) - 1
    if exists == 0 then
        redis.call('pexpire', queue, QUEUE_TTL)
    end
    return place, 1, not requeued_at and place == 0
end

-- Removes the silent entries ahead of `asker`. The caller has found the lock free while the queue
-- has entries: an owner did not use its grant, or the holder died. If the silent entries remained,
-- each of them in turn would be granted the lock for PROVISIONAL ms. An entry is silent if its
-- owner has sent no request for ALIVE_FOR ms, while the server answered the asker. `sent_at`: the
-- server's time at which the client sent this request, as the client estimates it; nil if the
-- server did not answer the client promptly in the last ALIVE_FOR ms. If the asker's request is
-- late, the server stood still or its clock jumped. In that case requests of other owners may be
-- late, too, so no entry is taken as silent.
local function remove_silent(asker, sent_at)
    if not sent_at or math.abs(now() - sent_at) > MAX_REQUEST_AGE then
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

local function send_message(channel, owner, verb, details)
    local number = string.match(owner, '^%d+', 38) or ''
    redis.call('publish', channel, table.concat({verb, number, details, database, lock}, ' '))
end

-- Returns the time left of an open window, or nil. If the key lasts longer than WINDOW, the
-- server's clock was set back, and the window is taken as closed.
local function window_left()
    local left = redis.pcall('pttl', window)
    return type(left) == 'number' and left > 0 and left <= WINDOW and left or nil
end

-- Sends a message to the first process in the queue that listens. The message tells the process to
-- send a request in `left` ms, when the window ends; 0 means at once. Without the message no
-- process would send a request. Removes the entries in front of that process, except the entry of
-- `asker`. The asker's subscription may still be on its way to the server, and the asker sends
-- another request after the server has confirmed it.
local function announce(left, asker)
    while true do
        local head = redis.call('lindex', queue, 0)
        local channel = head and channel_of(head)
        if channel then
            send_message(channel, head, 'open', left)
        end
        if channel or not head or head == asker then
            return
        end
        redis.call('lpop', queue)
    end
end

-- Publishes on the public channel that the lock is free. Returns whether the server refused this.
-- Even then the lock is free, but Redisson's waiters sleep until the end of the lease they read.
local function publish_refused(message)
    return type(redis.pcall('publish', public, message)) == 'table'
end

-- Hands on a lock that the script has just freed. The releasing script itself grants the lock, so a
-- hand-off costs two scripts and one message for any number of waiters. Returns 1: `grant` made the
-- next process the owner; 2: a window is open, in which Redisson's clients may take the lock; 0:
-- the lock is free, and `message` was published on the public channel; 3: as 0, and the chain ends,
-- because no Redisson client listens; 5: as 0, 2 or 3, but the server refused the message. A chain
-- is the time for which redlatch's processes have had the lock without a window. A grant gives the
-- chain's data to the new owner, whose release sends them back. (It sends the count plus one, from
-- which release.lua computes `chain_count`.)
-- `start_or_age`: if above 0, the server's time in ms at which the chain began; otherwise minus the
-- chain's age in ms. `chain_count`: the number of grants in this chain.
local function hand_on(start_or_age, chain_count, message, grant)
    local chain_start, reply =
        math.max(start_or_age > 0 and start_or_age or now() + start_or_age, 0), 0
    -- If the chain's beginning is in the future, the server's clock was set back.
    local age = start_or_age > 0 and math.abs(now() - start_or_age) or -start_or_age
    if age >= MIN_CHAIN_AGE then
        -- The number of waiting Redisson clients: all listeners to the public channel, less
        -- redlatch's clients, which also listen to the second channel.
        local subscribers = redis.pcall('pubsub', 'numsub', public, public .. ':redlatch')
        local redisson_waiters = refused(subscribers) and 0 or subscribers[2] - subscribers[4]
        -- While each redlatch process gets the lock once, each Redisson client should get it once,
        -- too. The redlatch processes are the waiters and the process that releases. If only the
        -- chain's age decided, Redisson's clients would get much more than their share when holds
        -- are long.
        if redisson_waiters > 0 and chain_count * redisson_waiters > length() then
            -- The window must be a key at the server: the next request of this process may be in
            -- the same packet and must find the window open.
            redis.pcall('set', window, '', 'px', WINDOW)
            local was_refused = publish_refused(message)
            pcall(announce, WINDOW)
            return was_refused and 5 or 2
        elseif redisson_waiters == 0 then
            chain_start, chain_count, reply = now(), 0, 3
        end
    end
    if length() > 0 and grant(chain_start, chain_count + 1) then
        return 1
    end
    return publish_refused(message) and 5 or reply
end
