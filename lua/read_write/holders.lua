-- Stands behind ../hand_off.lua and before every script of a read-write lock: who holds it, and how
-- those who wait are granted it. README.md has the reasons.
--
-- KEYS, and what each script sets, see ../hand_off.lua
--
-- An owner is the hash's field: `uuid:number` reads, `uuid:number:write` writes. In the queue it
-- stands as it will in the hash, so a place says what it waits for.
--
-- When a script of ours ends, who is first in line waits for a reason: the lock is held by a writer,
-- or by readers and the first wants to write, or a free lock is left to others for a window. Or the
-- server refused what a grant needs: then who is first has its place still, unless it asked itself
-- and was told so.

local function writes(owner)
    return string.sub(owner, -6) == ':write'
end

-- How long the read hold number `n` of an owner lasts. Whoever reads has such a key for each level
-- (ours have one), or the next one of Redisson's that leaves deletes the lock.
local prefix = (string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}') .. ':'
local function timeout(owner, n)
    return prefix .. owner .. ':rwlock_timeout:' .. n
end

-- How the lock is held, `read` or `write`, and for how long; nil if it is free. The third: what is
-- there is no read-write lock. One has a mode and a time to live, always: waiting for another hash
-- would not end.
local function mode_of()
    local mode = redis.call('hget', lock, 'mode')
    if not mode and redis.call('exists', lock) == 0 then
        return nil
    end
    local left = redis.call('pttl', lock)
    if mode ~= 'read' and mode ~= 'write' or left == -1 then
        return nil, left, redis.error_reply(
            'WRONGTYPE the hash is no read-write lock: no mode, or no time to live')
    end
    return mode, left
end

-- Whether one of Redisson's is among the holders.
local function is_foreign()
    for _, field in ipairs(redis.pcall('hkeys', lock)) do
        if field ~= 'mode' and not is_ours(field) then
            return true
        end
    end
    return false
end

-- Only ever raised: a lease that is longer stays. It always writes: see lock/acquire.lua. 0: the key
-- is not there.
local function raise(key, lease)
    local left = redis.call('pttl', key)
    return redis.call('pexpire', key, left < tonumber(lease) and lease or left)
end

-- Makes the lease of `owner`, who has the lock, this long at least; nil, or the server's refusal.
-- The timeout of a reader that stood still may have lapsed while another reader kept the lock. It is
-- made anew, as by lock/renew.lua: without it the next reader that leaves would find nobody else, and
-- free the lock for a writer.
local function raise_hold(owner, lease)
    if not writes(owner) and raise(timeout(owner, 1), lease) == 0 then
        local trouble = refused(redis.pcall('set', timeout(owner, 1), 1, 'px', lease))
        if trouble then
            return trouble
        end
    end
    raise(lock, lease)
end

-- Whether a command that stands behind a change would be refused. Servers before 7.0 cannot be
-- asked.
local function denied(...)
    if redis.acl_check_cmd and not redis.acl_check_cmd(...) then
        return redis.error_reply('NOPERM the user may not run ' .. string.upper((...)) .. ' here')
    end
end

-- Makes `owner` a holder, which must not contradict those there are; nil, or the server's refusal and
-- nothing done. A lock never stays without an end, and no reader without its timeout: what may be
-- refused comes first. (Not on a server that can be asked: with a PEXPIRE the script has written, and
-- memory is no reason to refuse any more.)
local function hold(owner, lease)
    local left = redis.pcall('pttl', lock)
    local trouble = refused(left) or denied('pexpire', lock, lease)
    if not trouble and not redis.acl_check_cmd then
        -- It changes nothing: of a lock that is free, or by what it has.
        trouble = refused(redis.pcall('pexpire', lock, left > 0 and left or lease))
    end
    if trouble then
        return trouble
    elseif writes(owner) then
        trouble = refused(redis.pcall('hset', lock, 'mode', 'write', owner, 1))
    else
        trouble = refused(redis.pcall('set', timeout(owner, 1), 1, 'px', lease))
        if trouble then
            return trouble
        end
        local fields = left == -2 and {'mode', 'read', owner, 1} or {owner, 1}
        trouble = refused(redis.pcall('hset', lock, unpack(fields)))
        if trouble then
            redis.pcall('del', timeout(owner, 1))
        end
    end
    if not trouble and left < tonumber(lease) then
        redis.call('pexpire', lock, lease)
    end
    return trouble
end

-- Ends the hold of `owner`, who has one; whether the lock is free now, and whether it is left to
-- Redisson's alone. As Redisson does: readers who are left keep it for as long as the longest of them,
-- and if all have lapsed it is free.
-- What is asked comes before the change. DEL and HDEL are allowed without memory.
local MOST = 1000
local function drop(owner)
    local fields = redis.call('hgetall', lock)
    local longest, writer, ours = 0, false, false
    for i = 1, #fields, 2 do
        local field, count = fields[i], tonumber(fields[i + 1])
        if field == owner or field == 'mode' then
            count = 0
        elseif writes(field) then
            writer, count = true, 0
        else
            ours = ours or is_ours(field)
        end
        -- (A count that nobody can have must not stop the server.)
        for n = math.min(count or 0, MOST), 1, -1 do
            longest = math.max(longest, redis.call('pttl', timeout(field, n)))
        end
    end
    local free = longest == 0 and not writer
    if free then
        redis.call('del', lock)
    else
        if writes(owner) then
            -- What makes a reader of it is tried, in a form that changes nothing: refused behind the
            -- HDEL, nobody could enter. (A HDEL makes room.)
            redis.call('hdel', lock, '')
            redis.call('hset', lock, 'mode', 'write')
        end
        redis.call('hdel', lock, owner)
        if not writer then
            if writes(owner) then
                redis.call('hset', lock, 'mode', 'read')
            end
            redis.pcall('pexpire', lock, longest)
        end
    end
    if not writes(owner) then
        redis.pcall('del', timeout(owner, 1))
    end
    return free, not ours
end

-- How many wait behind a hold that `owner` gets now: of one that reads, behind the readers who get it,
-- too.
local function behind(owner)
    if writes(owner) then
        return length()
    end
    local places = redis.pcall('lrange', queue, 0, -1)
    if refused(places) then
        return length()
    end
    for i, place in ipairs(places) do
        if writes(place) then
            return #places - i + 1
        end
    end
    return 0
end

-- Grants the lock to who is first in line and listens; if that is a reader, to all readers up to the
-- next writer. The first result: whether anybody was granted it. `asker` needs no message, since it
-- reads the reply, and gets `lease`; the second is whether it was its turn, the third why it got
-- nothing all the same, or why nobody could be taken off the queue.
-- A writer who is first and has to wait for readers is passed if it is dead.
-- A grant's message is the last that is done about it: nobody hears of one that is taken back.
local function grant(start, count, asker, lease)
    local granted, asked, trouble = false, false, stuck()
    while not trouble do
        local head = redis.pcall('lindex', queue, 0)
        local mode = redis.pcall('hget', lock, 'mode')
        trouble = refused(head) or refused(mode)
        if type(head) ~= 'string' or trouble or mode == 'write'
            or not mode and redis.pcall('exists', lock) ~= 0 then
            break
        end
        local channel = head ~= asker and channel_of(head)
        local dead = head ~= asker and not channel
        if not dead and mode and writes(head) then
            break
        end
        trouble = refused(redis.pcall('lpop', queue))
        if trouble then
            break
        elseif dead then
            -- It is passed.
        elseif head == asker then
            asked, trouble = true, hold(head, lease)
            if trouble then
                break
            end
            granted = true
        else
            local refusal = hold(head, PROVISIONAL)
            local heard = refusal or tell(channel, head, 'grant', string.format(
                '%.0f %d %s,%d,%.0f,%.0f', now(), PROVISIONAL, writes(head) and 'write' or 'read',
                behind(head), start, count))
            if type(heard) == 'number' and heard > 0 then
                granted = true
            else
                if not refusal then
                    drop(head)
                end
                if type(heard) == 'table' then
                    -- Not the head's fault: it has its place again, and asks for itself some time.
                    enqueue('lpush', head)
                    break
                end
            end
        end
    end
    return granted, asked, trouble
end

-- Whoever comes by does what is to be done.
local function look()
    local mode = redis.pcall('hget', lock, 'mode')
    if mode == 'read' then
        grant(now(), 1)
    elseif not mode and redis.pcall('exists', lock) == 0 then
        local left = window_left()
        if left then
            announce(left)
        else
            grant(now(), 1)
        end
    end
end

-- Ends the hold of `owner`. false: it has none (any more). 4: others hold the lock still. Else as
-- `hand_on`.
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
    -- As Redisson: a writer's release wakes all who wait, a reader's one.
    local message = writes(owner) and '1' or '0'
    local free, is_left = drop(owner)
    if free then
        return hand_on(since, count, message, grant)
    elseif is_left and not writes(owner) then
        -- Redisson's came in beside ours, and will leave in public. The first in line must listen.
        -- (Before it the dead are passed, and readers behind them let in.)
        look()
        announce(0)
    elseif writes(owner) then
        -- It reads on. (Redisson tells nobody of that, and readers sleep on.)
        grant(now(), 1)
        redis.pcall('publish', public, message)
    end
    return 4
end
