-- Stands behind ../hand_off.lua and before every script of a read-write lock: its holders, and how
-- waiters are granted it. docs/read-write-lock.md has the reasons.
--
-- KEYS, and the variables that each script sets, see ../hand_off.lua
--
-- An owner is the hash's field: `uuid:number` reads, `uuid:number:write` writes. The queue has it
-- in the same form, so an entry shows whether its owner waits to read or to write.
--
-- When a script of ours ends, the first in line waits for a reason: the lock is held by a writer,
-- or by readers and the first wants to write, or a free lock is left to others for a window. Or the
-- server refused a command that a grant needs.

local function writes(owner)
    return string.sub(owner, -6) == ':write'
end

-- How long the read hold number `n` of an owner lasts. Each reader has such a key for each level
-- (ours have one), or the next one of Redisson's that leaves deletes the lock.
local prefix = (string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}') .. ':'
local function timeout(owner, n)
    return prefix .. owner .. ':rwlock_timeout:' .. n
end

local may_not_grant = stuck
local function stuck()
    return may_not_grant() or denied('lindex', queue, '') or denied('lrange', queue, '', '')
        or denied('set', timeout('', 1), '')
end

-- How the lock is held, `read` or `write`, and for how long; nil if it is free. The third: the key
-- holds no read-write lock. Such a lock always has a mode and a time to live: a wait for another
-- hash would not end.
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

-- Only ever raised: a longer lease stays. It always writes: see lock/acquire.lua. 0: the key does
-- not exist.
local function raise(key, lease)
    local left = redis.call('pttl', key)
    return redis.call('pexpire', key, left < tonumber(lease) and lease or left)
end

-- Makes the lease of `owner`, which has the lock, this long at least; nil, or the server's refusal.
-- The timeout of a reader that stood still may have lapsed while another reader kept the lock. It
-- is made anew, as by lock/renew.lua: without it the next reader that leaves would find no other
-- reader, and free the lock for a writer.
local function raise_hold(owner, lease)
    if not writes(owner) and raise(timeout(owner, 1), lease) == 0 then
        local trouble = refused(redis.pcall('set', timeout(owner, 1), 1, 'px', lease))
        if trouble then
            return trouble
        end
    end
    raise(lock, lease)
end

-- Makes these owners holders, one or readers, which must not contradict the present ones; nil, or
-- the server's refusal and nothing done. A lock never stays without an end, and no reader without
-- its timeout: commands that may be refused come first. (PEXPIRE is asked for, not tried: behind it
-- the script has written, and memory is no reason to refuse any more.) `lasts`: others hold it for
-- so long at least, as this script has made sure.
local function hold(owners, lease, lasts)
    local left = lasts or redis.pcall('pttl', lock)
    local trouble = refused(left) or not lasts and denied('pexpire', lock, '') or nil
    local is_writer, timeouts, fields = writes(owners[1]), {}, {}
    if is_writer or left == -2 then
        fields = {'mode', is_writer and 'write' or 'read'}
    end
    for i, owner in ipairs(owners) do
        if not trouble and not is_writer then
            timeouts[i] = timeout(owner, 1)
            trouble = refused(redis.pcall('set', timeouts[i], 1, 'px', lease))
        end
        fields[#fields + 1], fields[#fields + 2] = owner, 1
    end
    trouble = trouble or refused(redis.pcall('hset', lock, unpack(fields)))
    if trouble then
        if #timeouts > 0 then
            redis.pcall('del', unpack(timeouts))
        end
    elseif left < tonumber(lease) then
        redis.call('pexpire', lock, lease)
    end
    return trouble
end

-- How long a reader's hold lasts: the longest of its levels, below 0 if all have lapsed. (An
-- impossible count must not stop the server.)
local MOST = 1000
local function longest_of(reader, count)
    local longest = -2
    for n = math.min(tonumber(count) or 0, MOST), 1, -1 do
        longest = math.max(longest, redis.call('pttl', timeout(reader, n)))
    end
    return longest
end

-- The lock without `owner`: how long the longest of the other readers lasts (0: none does), whether
-- one of them writes, whether one of them is ours. The fields of dead readers are removed as well:
-- those of ours, and among many those of Redisson's. (Redisson's unlock after its lease is an error
-- if the field has gone.)
local MANY, LOOKS = 64, 16
local function others(owner, size)
    local fields = redis.call('hgetall', lock)
    local longest, writer, ours, dead = 0, false, false, {}
    for i = 1, #fields, 2 do
        local field = fields[i]
        if field == owner or field == 'mode' then
            -- Leaves with this call.
        elseif writes(field) then
            writer = true
        else
            local left = longest_of(field, fields[i + 1])
            longest = math.max(longest, left)
            if left >= 0 or not is_ours(field) and size <= MANY then
                ours = ours or is_ours(field)
            else
                dead[#dead + 1] = field
            end
        end
    end
    return longest, writer, ours, dead
end

-- The same for a lock with many readers, without a look at all of them: a few at random. nil: look
-- at all, since none of these lasts, or none is ours, or the leaving owner might be the only one
-- that has the lock for so long. Otherwise the lock keeps its time to live, which may be that of a
-- reader that left before. When all but MANY have left, it is that of the longest again; if all
-- die, see `outlived`.
local function some(owner)
    local fields = redis.pcall('hrandfield', lock, -LOOKS, 'withvalues')
    if refused(fields) then
        return nil
    end
    local longest, ours, dead = 0, false, {}
    for i = 1, #fields, 2 do
        local field = fields[i]
        if field ~= owner and field ~= 'mode' then
            local left = longest_of(field, fields[i + 1])
            longest = math.max(longest, left)
            if left < 0 then
                dead[#dead + 1] = field
            elseif is_ours(field) then
                ours = true
            end
        end
    end
    local left = redis.call('pttl', lock)
    local is_its_own = redis.call('pttl', timeout(owner, 1)) >= left - 2
    if longest > 0 and ours and not (is_its_own and left > 2 * longest) then
        return left, dead
    end
end

-- Ends the hold of `owner`, which has one; returns whether the lock is free now, whether it is left
-- to Redisson's alone, and the reason if the user may not, and then nothing is done. As in
-- Redisson: the remaining readers keep it for as long as the longest of them, and if all have
-- lapsed it is free. Queries come before the change. DEL and HDEL are allowed without memory.
local function drop(owner)
    -- (A writer has one field more at most.)
    local size = writes(owner) and 3 or redis.call('hlen', lock)
    local longest, writer, ours, dead, left = 0, false, false, {}, nil
    if size > MANY and not writes(owner) and redis.call('hget', lock, 'mode') == 'read' then
        left, dead = some(owner)
        ours = true
    end
    if not left and size > 2 then
        longest, writer, ours, dead = others(owner, size)
    end
    local free = not left and longest == 0 and not writer
    -- (Where others of ours read on, there is nothing to tell.)
    local trouble = public and (free or not ours or writes(owner))
        and (length() > 0 and stuck() or not now())
    if trouble then
        return nil, nil, trouble
    elseif free then
        redis.call('del', lock)
    else
        if writes(owner) then
            -- The command that makes the owner a reader is tried, in a form that changes nothing:
            -- refused behind the HDEL, no owner could enter. (A HDEL makes room.)
            redis.call('hdel', lock, '')
            redis.call('hset', lock, 'mode', 'write')
        end
        redis.call('hdel', lock, owner)
        for i = 1, #dead, MOST do
            redis.pcall('hdel', lock, unpack(dead, i, math.min(i + MOST - 1, #dead)))
        end
        if not writer and not left then
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

-- For a writer that asks while many read: whether all were looked at, and how the lock is held may
-- have changed. If they died, the lock's time to live may be that of a reader that left long before
-- (`some`). Then none among a few at random lives, and all are looked at.
local function outlived()
    if redis.call('hlen', lock) > MANY then
        -- (No owner leaves. Dead readers are removed as well.)
        drop('')
        return true
    end
end

-- How many wait behind a hold that `owner` gets now: for a reader, behind the readers that enter
-- with it.
local function behind(owner)
    if writes(owner) then
        return length()
    end
    local places = redis.call('lrange', queue, 0, -1)
    for i, place in ipairs(places) do
        if writes(place) then
            return #places - i + 1
        end
    end
    return 0
end

-- The channels of these processes, as `channel_of`, up to the first writer; false: the process does
-- not listen. One command asks for all of them.
local function channels_of(line)
    local channels = {}
    for i, owner in ipairs(line) do
        if writes(owner) then
            break
        end
        channels[i] = own_channel(owner)
    end
    local heard = redis.call('pubsub', 'numsub', unpack(channels))
    for i = 1, #channels do
        channels[i] = heard[2 * i] > 0 and channels[i]
    end
    return channels
end

-- Grants the lock to the first in line that listens; if that is a reader, to all readers up to the
-- next writer. The first result: whether any owner was granted it. `asker` needs no message, since
-- it reads the reply, and gets `lease`; the second is whether it was its turn, the third the reason
-- why it, or the one before it, still got nothing. (The caller has asked `stuck`.) A writer that is
-- first and has to wait for readers is passed if it is dead. A call may let thousands of readers
-- in, and the server serves no other client meanwhile. So values that are the same for all of them
-- are asked for once, and more and more of them are looked at together.
local MOST_TOGETHER = 100
local function grant(start, count, asker, lease)
    local granted, asked, trouble = false, false, nil
    -- The first in line, as last read, with their channels, and which of them is next. How the lock
    -- is held, for how long at least, and how many wait behind readers; nil: not known.
    local line, channels, at, most = nil, {}, 1, 1
    local mode, lasts, waiting
    while true do
        if mode == nil then
            mode = redis.call('hget', lock, 'mode')
        end
        if not line then
            line = {redis.call('lindex', queue, 0)}
        elseif not line[at] then
            most = math.min(4 * most, MOST_TOGETHER)
            line, at = redis.call('lrange', queue, 0, most - 1), 1
            channels = channels_of(line)
        end
        local head = line[at]
        if not head or mode == 'write' or not mode and redis.call('exists', lock) ~= 0 then
            break
        end
        local channel = channels[at]
        if head ~= asker and channel == nil then
            channel = channel_of(head)
        end
        local dead = head ~= asker and not channel
        if not dead and mode and writes(head) then
            break
        end
        -- The readers already looked at that are next get it together: one LPOP and HSET for all of
        -- them.
        local together = {head}
        while head ~= asker and channel and not writes(head) and channels[at + #together]
            and line[at + #together] ~= asker
        do
            together[#together + 1] = line[at + #together]
        end
        redis.call('lpop', queue, #together)
        if dead then
            -- A dead owner is passed.
            if writes(head) then
                waiting = nil
            end
        elseif head == asker then
            asked, trouble = true, hold(together, lease)
            if trouble then
                break
            end
            granted, mode = true, nil
        else
            trouble = hold(together, PROVISIONAL, lasts)
            if trouble then
                break
            end
            waiting = waiting or behind(head)
            mode, lasts = writes(head) and 'write' or 'read', PROVISIONAL
            local details = string.format(
                '%.0f %d %s,%d,%.0f,%.0f', now(), PROVISIONAL, mode, waiting, start, count)
            for i, owner in ipairs(together) do
                tell(channels[at + i - 1] or channel, owner, 'grant', details)
            end
            granted = true
        end
        at = at + #together
    end
    return granted, asked, trouble
end

-- As `hand_on`. A writer's release that lets readers of ours in is told to Redisson's, too: they may
-- read beside them, and would sleep until the last of ours leaves, or for the rest of a lease.
local function hand_over(since, count, message)
    local reply = hand_on(since, count, message, grant)
    if reply == 1 and message == '1' and redis.call('hget', lock, 'mode') == 'read' then
        local heard = redis.pcall('pubsub', 'numsub', public, public .. ':redlatch')
        if (refused(heard) or heard[2] > heard[4]) and is_muted(message) then
            return 5
        end
    end
    return reply
end

-- Any script that comes by does the pending hand-over.
local function look()
    local mode = redis.pcall('hget', lock, 'mode')
    local left = not mode and window_left()
    if left then
        announce(left)
    elseif (not mode or mode == 'read') and length() > 0 and not stuck() then
        grant(now(), 1)
    end
end

-- Ends the hold of `owner`. false: it has none (any more). 4: others still hold the lock; 5: so, too,
-- but a message was refused. Otherwise as `hand_on`.
local function release(owner, since, count)
    local held = redis.pcall('hexists', lock, owner)
    -- Other data written over the lock is not this owner's either.
    if refused(held) and not string.find(held.err, 'WRONGTYPE') then
        return held
    elseif held ~= 1 then
        ensure_master()
        look()
        return false
    end
    -- As Redisson: a writer's release wakes all waiters, a reader's one.
    local message = writes(owner) and '1' or '0'
    local free, is_left, trouble = drop(owner)
    if trouble then
        return trouble
    elseif free then
        return hand_over(since, count, message)
    elseif is_left and not writes(owner) then
        -- Redisson's came in beside ours, and will leave in public. The first in line must listen.
        -- (Before it the dead are passed, and readers behind them let in.)
        look()
        announce(0)
    elseif writes(owner) then
        -- The owner reads on. (Redisson sends no message then, and readers sleep on.)
        grant(now(), 1)
        return is_muted(message) and 5 or 4
    end
    return 4
end
