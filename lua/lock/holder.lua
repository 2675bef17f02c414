-- Stands behind ../hand_off.lua and before every script of a lock that has one holder, but renew.lua
-- and owners.lua: who that is, and how the head of the queue becomes it. docs/hand-off.md has the reasons.
--
-- KEYS, and what each script sets, see ../hand_off.lua; and
--      4 the last fencing token, of a lock that has some
--
-- What one invariant says: when a script of ours ends, a free lock means an empty queue or an open
-- window. (Or the server refused what a grant needs: then the head has its place still, unless it
-- asked itself and was told so.)
local tokens = KEYS[4]

-- So many tokens a grant takes: one for each thread that its process passes the lock to. More than
-- 2^53 cannot be counted here.
local TOKENS = 1024

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
local function take_tokens()
    token = tokens and redis.pcall('incrby', tokens, TOKENS) or nil
    local trouble = refused(token)
    local is_no_number = trouble and (string.find(trouble.err, 'WRONGTYPE')
        or string.find(trouble.err, 'integer') or string.find(trouble.err, 'overflow'))
    if type(token) == 'number' and token < TOKENS then
        -- Left as it was, or the next request would count on from it.
        redis.call('incrby', tokens, -TOKENS)
        is_no_number = true
    end
    if is_no_number or type(token) == 'number' and token >= 2^53 then
        return redis.error_reply('TOKENS no number from 0 to 2^53 is there to count on from')
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
-- (Asked, not tried: behind a PEXPIRE the script has written, and memory is no reason to refuse any more.)
local function hold(owner, lease)
    local trouble
    if not redis.acl_check_cmd('pexpire', lock, lease) then
        trouble = redis.error_reply('NOPERM the user may not run PEXPIRE on the lock')
    end
    trouble = trouble or take_tokens() or refused(redis.pcall('hset', lock, owner, 1))
    if not trouble then
        redis.call('pexpire', lock, lease)
    end
    return trouble
end

-- Grants the free lock to the first in the queue whose process listens; returns whom. `asker` needs
-- no message, since it reads the reply, and gets `lease`; the second result is why it got nothing, or
-- why nobody could be taken off the queue.
-- With the chain (see `hand_on`) the token travels, if there is one.
-- The message is the last command: nobody hears of a grant that is taken back.
local function grant_head(start, count, asker, lease)
    local trouble = stuck()
    while not trouble do
        local head = redis.pcall('lpop', queue)
        if type(head) ~= 'string' then
            return nil, refused(head)
        end
        if head == asker then
            return head, hold(head, lease)
        end
        -- The dead get no hold that would have to be taken back, and without the right to DEL be left.
        local channel = channel_of(head)
        trouble = channel and hold(head, PROVISIONAL)
        local heard = trouble or not channel and 0 or tell(channel, head, 'grant',
            string.format('%.0f %d lock,%d,%.0f,%.0f', now(), PROVISIONAL, length(), start, count)
                .. (token and string.format(',%.0f', token) or ''))
        if type(heard) == 'number' and heard > 0 then
            return head
        end
        if channel and not trouble then
            redis.call('del', lock)
        end
        if type(heard) == 'table' then
            -- Not the head's fault: it has its place again, and asks for itself some time.
            enqueue('lpush', head)
            return nil
        end
    end
    return nil, trouble
end

-- Whoever comes by does what is to be done.
local function look()
    if redis.call('exists', lock) == 1 then
        return
    end
    local left = window_left()
    if left then
        announce(left)
    else
        grant_head(now(), 1)
    end
end

-- Ends the hold of `owner`. false: it has none (any more). Else as `hand_on`. That is all that release.lua
-- does; unwanted.lua, which runs before all of it, is what is left of it for a lock that nobody waits
-- for: EXISTS, HDEL, PUBLISH, and PUBSUB NUMSUB before them if the chain is old.
-- DEL comes first and is allowed without memory; whatever is refused after it, the lock is free.
local function release(owner, since, count)
    local held = redis.pcall('hexists', lock, owner)
    -- Something else that was written over the lock is not this owner's either.
    if refused(held) and not string.find(held.err, 'WRONGTYPE') then
        return held
    elseif held ~= 1 then
        ensure_master()
        look()
        return false
    end
    redis.call('del', lock)
    return hand_on(since, count, '0', grant_head)
end
