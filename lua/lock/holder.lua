-- Prepended to most scripts of a lock with one holder, after ../hand_off.lua: how the head of the
-- queue becomes the holder. docs/hand-off.md has the reasons.
--
-- KEYS 1 to 3, and the variables that each script sets, see ../hand_off.lua; 4 the last fencing
--      token, if the lock has tokens
--
-- Invariant: if the lock is free when one of these scripts ends, the queue is empty or a window is
-- open. The exception: the server refused a command that a grant needs.
local tokens = KEYS[4]

-- The number of tokens that a grant takes. The process uses one token each time one of its threads
-- gets the lock.
local TOKENS = 1024

-- The last token of the hold that this run of the script granted, or nil if the lock has no tokens.
local token

-- Takes tokens for a hold. Returns nil, or the server's refusal. The tokens that the hold does not
-- use are never given to another hold.
local function take_tokens()
    token = tokens and redis.pcall('incrby', tokens, TOKENS) or nil
    local refusal = refused(token)
    local is_no_number = refusal and (string.find(refusal.err, 'WRONGTYPE')
        or string.find(refusal.err, 'integer') or string.find(refusal.err, 'overflow'))
    if type(token) == 'number' and token < TOKENS then
        -- The old value was negative. Undo the INCRBY, so that the next request does not accept the
        -- new value.
        redis.call('incrby', tokens, -TOKENS)
        is_no_number = true
    end
    if is_no_number or type(token) == 'number' and token >= 2^53 then
        return redis.error_reply('TOKENS no number from 0 to 2^53 is there to count on from')
    end
    return refusal
end

-- Returns the reply to an owner that has the lock now. `places`: the number of waiting entries, or
-- -1 minus that number if this owner already had the lock.
local function granted_reply(places)
    return token and {places, token} or places
end

-- Makes `owner` the holder of a free lock. Returns nil, or the server's refusal. After a refusal
-- nothing has changed, because a lock must not stay without a time to live. (If the
-- server is out of memory and nobody waits, the server must refuse the grant. So HSET must be the
-- first write: after an accepted first write, the server refuses no command for lack of memory. So
-- PEXPIRE cannot come before HSET.)
local function make_holder(owner, lease)
    local refusal = take_tokens() or refused(redis.pcall('hset', lock, owner, 1))
        or refused(redis.pcall('pexpire', lock, lease))
    if refusal then
        redis.pcall('hdel', lock, owner)
    end
    return refusal
end

-- Grants the free lock to the first process in the queue that listens. Returns the new owner, and
-- the server's refusal if there was one. The process of `asker` reads the reply, so `asker` gets
-- the full `lease` and no message. The message to any other owner contains the chain's beginning
-- and count (see `hand_on`), and the token if the lock has tokens. (The caller has called
-- `denied_grant`.)
local function grant_head(chain_start, chain_count, asker, lease)
    local head = redis.call('lpop', queue)
    while head and head ~= asker do
        local channel = channel_of(head)
        if channel then
            local refusal = make_holder(head, PROVISIONAL)
            if refusal then
                return nil, refusal
            end
            send_message(channel, head, 'grant',
                string.format('%.0f %d lock,%d,%.0f,%.0f', now(), PROVISIONAL, length(),
                    chain_start, chain_count) .. (token and string.format(',%.0f', token) or ''))
            return head
        end
        head = redis.call('lpop', queue)
    end
    return head, head and make_holder(head, lease)
end

-- If the lock is free, grants it to the first waiter. If a window is open, tells the first waiter
-- when the window ends instead.
local function grant_next()
    if redis.call('exists', lock) == 1 then
        return
    end
    local left = window_left()
    if left then
        announce(left)
    elseif length() > 0 and not denied_grant() then
        grant_head(now(), 1)
    end
end

-- Ends the hold of `owner`. Returns false if the owner has none, otherwise the result of `hand_on`.
-- (If the lock has no waiters, hand_over.lua has already released it.) DEL is the first write,
-- because a server that is out of memory allows it.
local function release(owner, start_or_age, chain_count)
    local held = redis.pcall('hexists', lock, owner)
    -- WRONGTYPE: the key holds data of another type, so this owner does not have the lock.
    if refused(held) and not string.find(held.err, 'WRONGTYPE') then
        return held
    elseif held ~= 1 then
        ensure_master()
        grant_next()
        return false
    end
    return length() > 0 and denied_grant() or not now()
        or redis.call('del', lock) and hand_on(start_or_age, chain_count, '0', grant_head)
end
