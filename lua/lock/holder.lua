-- Stands behind ../hand_off.lua and before every script of a lock with one holder: how the head of
-- the queue becomes the holder. docs/hand-off.md has the reasons.
--
-- KEYS, and the variables that each script sets, see ../hand_off.lua; 4 the last fencing token, if
--      the lock has tokens
--
-- One invariant: if the lock is free when a script of ours ends, the queue is empty or a window is
-- open, unless the server refused a command that a grant needs.
local tokens = KEYS[4]

-- The number of tokens that a grant takes: one for each thread to which its process passes the
-- lock. Lua cannot count beyond 2^53.
local TOKENS = 1024

-- The last token of the hold that this run granted, or nil if the lock has no tokens.
local token

-- Takes tokens for a hold. Returns nil, or the refusal. Unused tokens are never handed out again.
local function take_tokens()
    token = tokens and redis.pcall('incrby', tokens, TOKENS) or nil
    local trouble = refused(token)
    local is_no_number = trouble and (string.find(trouble.err, 'WRONGTYPE')
        or string.find(trouble.err, 'integer') or string.find(trouble.err, 'overflow'))
    if type(token) == 'number' and token < TOKENS then
        -- Undone: the next request must not count on from it.
        redis.call('incrby', tokens, -TOKENS)
        is_no_number = true
    end
    if is_no_number or type(token) == 'number' and token >= 2^53 then
        return redis.error_reply('TOKENS no number from 0 to 2^53 is there to count on from')
    end
    return trouble
end

-- The reply to an owner that was granted the lock: the number of waiting entries, or -1 less that
-- number if this owner had the lock already.
local function taken(places)
    return token and {places, token} or places
end

-- Makes `owner` the holder of a free lock. Returns nil, or the server's refusal, and then nothing
-- is done: a lock never stays without an end. (If nobody waits, HSET must be the first write, so
-- that the server refuses it without memory. After another write, such as a release's DEL, the
-- server would not refuse it. So PEXPIRE cannot be tried before it.)
local function hold(owner, lease)
    local trouble = take_tokens() or refused(redis.pcall('hset', lock, owner, 1))
        or refused(redis.pcall('pexpire', lock, lease))
    if trouble then
        redis.pcall('hdel', lock, owner)
    end
    return trouble
end

-- Grants the free lock to the first process in the queue that listens. Returns the owner that got
-- it, and as second result the refusal because of which no owner got it. `asker` reads the reply,
-- so it needs no message and gets `lease`. The token, if there is one, travels with the chain (see
-- `hand_on`). (The caller has asked `stuck`.)
local function grant_head(start, count, asker, lease)
    local head = redis.call('lpop', queue)
    while head and head ~= asker do
        local channel = channel_of(head)
        if channel then
            local trouble = hold(head, PROVISIONAL)
            if trouble then
                return nil, trouble
            end
            tell(channel, head, 'grant',
                string.format('%.0f %d lock,%d,%.0f,%.0f', now(), PROVISIONAL, length(), start, count)
                    .. (token and string.format(',%.0f', token) or ''))
            return head
        end
        head = redis.call('lpop', queue)
    end
    return head, head and hold(head, lease)
end

-- Hands a free lock on: any script that finds it free does so.
local function look()
    if redis.call('exists', lock) == 1 then
        return
    end
    local left = window_left()
    if left then
        announce(left)
    elseif length() > 0 and not stuck() then
        grant_head(now(), 1)
    end
end

-- Ends the hold of `owner`. Returns false if it has none, otherwise as `hand_on`. release.lua does
-- only this. For a lock without waiters, unwanted.lua has done it before: LLEN, HDEL, PUBLISH, and
-- before them PUBSUB NUMSUB if the chain is old. DEL is the first write, and is allowed without
-- memory.
local function release(owner, since, count)
    local held = redis.pcall('hexists', lock, owner)
    -- If other data was written over the lock, this owner does not have it either.
    if refused(held) and not string.find(held.err, 'WRONGTYPE') then
        return held
    elseif held ~= 1 then
        ensure_master()
        look()
        return false
    end
    return length() > 0 and stuck() or not now()
        or redis.call('del', lock) and hand_on(since, count, '0', grant_head)
end
