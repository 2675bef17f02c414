-- Stands before every script of a lock that one process hands to the next: the queue of processes,
-- the window for those who are not in it, and how the head is granted the lock. README.md has the
-- reasons.
--
-- KEYS 1 the lock, 2 the queue, 3 the window; or 1 alone: a client that has no right to the others
--      4 the last fencing token, of a lock that has some
-- ARGV are each script's own. It sets `database` (its number, which is sent if it is not 0), and, if
-- it may release, `public`, the lock's public channel: what is not sent costs nothing.
--
-- The queue is a list of owners, one for each process that waits, the first in line first. What one
-- invariant says: when a script of ours ends, a free lock means an empty queue or an open window.
-- What the queue needs is asked with `pcall`, and a key that was not sent is a refusal like others:
-- such a client has no place, and waits on the public channel.
local lock, queue, window, tokens = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local public, database

-- All in ms. How long a lock is granted for by message: its process may be stopped, and must say
-- that it is not before it gets the whole lease.
local PROVISIONAL = 2000
-- How long a lock is left to those who know the public channel only, and how long ours hand it on
-- among themselves at least before that. BLIND: where nobody may ask who listens.
local WINDOW, AGE, BLIND = 4, 10, 100
-- How long the queue outlives the last question.
local KEPT = 60000
-- So many tokens a grant takes: one for each thread that its process passes the lock to. More than
-- 2^53 cannot be counted here.
local TOKENS = 1024

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

-- Who has the lock, and for how long; nil if nobody has. The third: what is there is no lock. A
-- lock has one field, an owner, and a time to live, always: waiting for another hash would not end.
-- (HLEN first: it may have a million fields.)
local function holder()
    local fields = redis.call('hlen', lock)
    if fields == 0 then
        return nil
    end
    local left = redis.call('pttl', lock)
    local owner = fields == 1 and redis.call('hkeys', lock)[1]
    if not owner or left == -1 or string.match(owner, '^[%x-]+:()%d+$') ~= 38 then
        return nil, left, redis.error_reply(
            'WRONGTYPE the hash is no lock: no owner alone, or no time to live')
    end
    return owner, left
end

-- The last token of the hold that this run granted; nil for a lock without.
local token

-- Takes tokens for a hold: nil, or the refusal. What is taken and not used is never seen again.
local function fence()
    token = tokens and redis.pcall('incrby', tokens, TOKENS) or nil
    local trouble = refused(token)
    local is_no_number = trouble and (string.find(trouble.err, 'WRONGTYPE')
        or string.find(trouble.err, 'integer') or string.find(trouble.err, 'overflow'))
    if is_no_number or type(token) == 'number' and token >= 2^53 then
        return redis.error_reply('TOKENS no number below 2^53 is there to count on from')
    end
    return trouble
end

-- The reply to who was granted the lock: so many wait, or as this owner had it already -1 - so many.
local function taken(places)
    return token and {places, token} or places
end

-- Makes `owner` the holder of a free lock; nil, or the server's refusal and nothing done. A lock
-- never stays without an end. (HSET is the first that writes where nobody waits: without memory it
-- is refused. After another one, as the DEL of a release, it is not.)
-- Whether PEXPIRE is allowed is asked first: refused behind the HSET, the lock would stay for ever.
-- Servers before 7.0 cannot be asked; there a PEXPIRE that finds no key is refused first. (Not on the
-- others: with it the script has written, and memory is no reason to refuse any more.)
local function hold(owner, lease)
    local trouble
    if not redis.acl_check_cmd then
        trouble = refused(redis.pcall('pexpire', lock, lease))
    elseif not redis.acl_check_cmd('pexpire', lock, lease) then
        trouble = redis.error_reply('NOPERM the user may not run PEXPIRE on this key')
    end
    trouble = trouble or fence() or refused(redis.pcall('hset', lock, owner, 1))
    if not trouble then
        redis.call('pexpire', lock, lease)
    end
    return trouble
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

-- Tells the process of `owner` something; how many heard it, or the refusal. PUBLISH alone would
-- count somebody's pattern subscription, and a dead process would look alive.
local function tell(owner, verb, details)
    local channel = 'redisson_lock__channel:{redlatch:' .. string.sub(owner, 1, 36) .. '}'
    local heard = redis.pcall('pubsub', 'numsub', channel)
    if not refused(heard) and heard[2] == 0 then
        return 0
    end
    local number = string.sub(owner, 38)
    return redis.pcall('publish', channel,
        table.concat({verb, number, details, database, lock}, ' '))
end

-- Grants the free lock to the first in the queue whose process listens; returns whom. `asker` needs
-- no message, since it reads the reply, and gets `lease`; the second result is why it got nothing.
-- The chain is since when ours have had the lock without a window (ms), and how many of them; it
-- travels with the grant and comes back with the release. So does the token, if there is one.
-- The message is the last command: nobody hears of a grant that is taken back.
local function grant_head(start, count, asker, lease)
    while true do
        local head = redis.pcall('lpop', queue)
        if type(head) ~= 'string' then
            return nil
        end
        if head == asker then
            return head, hold(head, lease)
        end
        local trouble = hold(head, PROVISIONAL)
        local heard = trouble or tell(head, 'grant',
            string.format('%.0f %d lock,%d,%.0f,%.0f', now(), PROVISIONAL, length(), start, count)
                .. (token and string.format(',%.0f', token) or ''))
        if type(heard) == 'number' and heard > 0 then
            return head
        end
        if not trouble then
            redis.call('del', lock)
        end
        if type(heard) == 'table' then
            -- Not the head's fault: it has its place again, and asks for itself some time.
            enqueue('lpush', head)
            return nil
        end
    end
end

-- What is left of an open window. One that lasts longer than a window is none: the server's clock
-- was set back.
local function window_left()
    local left = redis.pcall('pttl', window)
    return type(left) == 'number' and left > 0 and left <= WINDOW and left or nil
end

-- Tells the first that listens to ask when the window ends: nobody else would then. `asker` keeps its
-- place: its subscription may be on the way, and it asks when that is there.
local function announce(left, asker)
    while true do
        local head = redis.pcall('lindex', queue, 0)
        if type(head) ~= 'string' or tell(head, 'open', left) ~= 0 or head == asker
            or type(redis.pcall('lpop', queue)) ~= 'string' then
            return
        end
    end
end

-- Whoever comes by does what is to be done. 1: it granted the lock; 0: it did not.
local function look()
    if redis.call('exists', lock) == 1 then
        return 0
    end
    local left = window_left()
    if left then
        announce(left)
        return 0
    end
    return grant_head(now(), 1) and 1 or 0
end

-- How many wait who hear a public release only: Redisson's clients, and ours without a place. Ours
-- with a place that listen there listen to the second channel, too. nil: nobody may ask.
local function others()
    local heard = redis.pcall('pubsub', 'numsub', public, public .. ':redlatch')
    return not refused(heard) and heard[2] - heard[4] or nil
end

local function publish(told)
    return refused(redis.pcall('publish', public, '0')) and -1 or told
end

-- Whether the others' turn has come: each of them gets one while each of ours does, those who wait
-- and the one that leaves. By age alone they got many times their share of long holds.
local function is_due(age, count, waiting)
    if waiting then
        return waiting > 0 and count * waiting > length()
    end
    return age >= BLIND
end

-- Ends the hold of `owner`. false: it has none (any more). 1: handed to the next process. 2: left
-- to the others for a window. 0: free, and told so in public; 3: the same, and the chain ends, since
-- nobody else listens. -1: free, and that was refused.
-- DEL comes first and is allowed without memory; whatever is refused after it, the lock is free.
local function release(owner, since, count)
    local held = redis.pcall('hexists', lock, owner)
    -- Something else that was written over the lock is not this owner's either.
    if refused(held) and not string.find(held.err, 'WRONGTYPE') then
        return held
    elseif held ~= 1 then
        look()
        return false
    end
    redis.call('del', lock)
    local start = math.max(since > 0 and since or now() + since, 0)
    -- A chain from the time to come: the clock was set back.
    local age = math.abs(now() - start)
    if age >= AGE then
        local waiting = others()
        if is_due(age, count, waiting) then
            -- Kept by the server: the next request of this process may be in the same packet.
            redis.pcall('set', window, '', 'px', WINDOW)
            if publish(0) == 0 then
                announce(WINDOW)
                return 2
            end
            redis.pcall('del', window)
        elseif waiting == 0 then
            return grant_head(now(), 1) and 1 or publish(3)
        end
    end
    return grant_head(start, count + 1) and 1 or publish(0)
end
