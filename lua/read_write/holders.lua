-- Stands behind ../hand_off.lua and before every script of a read-write lock: who holds it, and how
-- those who wait are granted it. docs/read-write-lock.md has the reasons.
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

-- Whether a command that stands behind a change would be refused.
local function denied(...)
    if not redis.acl_check_cmd(...) then
        return redis.error_reply('NOPERM the user may not run ' .. string.upper((...)) .. ' here')
    end
end

-- Makes these owners holders, one or readers, who must not contradict those there are; nil, or the
-- server's refusal and nothing done. A lock never stays without an end, and no reader without its
-- timeout: what may be refused comes first. (PEXPIRE is asked for, not tried: behind it the script has
-- written, and memory is no reason to refuse any more.)
-- `lasts`: others hold it for so long at least, as this script has seen to.
local function hold(owners, lease, lasts)
    local left = lasts or redis.pcall('pttl', lock)
    local trouble = refused(left) or not lasts and denied('pexpire', lock, lease) or nil
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

-- How long a reader's hold lasts: the longest of its levels, below 0 if all have lapsed.
-- (A count that nobody can have must not stop the server.)
local MOST = 1000
local function longest_of(reader, count)
    local longest = -2
    for n = math.min(tonumber(count) or 0, MOST), 1, -1 do
        longest = math.max(longest, redis.call('pttl', timeout(reader, n)))
    end
    return longest
end

-- What `owner` leaves when it leaves: how long the longest of the other readers lasts (0: none does),
-- whether one of them writes, whether one of them is ours. The fields of dead readers are taken along:
-- those of ours, and among many those of Redisson's. (Its unlock of a lease that is over is an error if
-- the field has gone.)
local MANY, LOOKS = 64, 16
local function others(owner, size)
    local fields = redis.call('hgetall', lock)
    local longest, writer, ours, dead = 0, false, false, {}
    for i = 1, #fields, 2 do
        local field = fields[i]
        if field == owner or field == 'mode' then
            -- It does not stay.
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

-- The same of a lock that many read, without a look at all of them: a few at random. nil: all are to be
-- looked at, since none of these lasts, or none is ours, or who leaves might be the only one that has
-- the lock for so long. Else the lock keeps the time to live that it has, which may be that of one who
-- left before. When all but MANY have left, it is that of the longest again; if all die, see `outlived`.
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

-- Ends the hold of `owner`, who has one; whether the lock is free now, and whether it is left to
-- Redisson's alone. As Redisson does: readers who are left keep it for as long as the longest of them,
-- and if all have lapsed it is free.
-- What is asked comes before the change. DEL and HDEL are allowed without memory.
-- `keeps`: it is a grant that is taken back; the dead stay.
local function drop(owner, keeps)
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
        for i = 1, keeps and 0 or #dead, MOST do
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

-- A writer asks while many read: whether they were looked at, and how the lock is held may have changed.
-- If they died, the lock's time to live may be that of one who left long before (`some`). Among a few at
-- random nobody lives then, and all are looked at.
local function outlived()
    if redis.call('hlen', lock) > MANY then
        -- (Nobody leaves. Those who are found dead are taken along.)
        drop('')
        return true
    end
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

-- The channels of these processes, as `channel_of`, up to the first that wants to write; false: it does
-- not listen. They are asked for by one command.
local function channels_of(line)
    local channels = {}
    for i, owner in ipairs(line) do
        if writes(owner) then
            break
        end
        channels[i] = 'redisson_lock__channel:{redlatch:' .. string.sub(owner, 1, 36) .. '}'
    end
    local heard = #channels > 0 and redis.pcall('pubsub', 'numsub', unpack(channels))
    for i = 1, heard and not refused(heard) and #channels or 0 do
        channels[i] = heard[2 * i] > 0 and channels[i]
    end
    return channels
end

-- Grants the lock to who is first in line and listens; if that is a reader, to all readers up to the
-- next writer. The first result: whether anybody was granted it. `asker` needs no message, since it
-- reads the reply, and gets `lease`; the second is whether it was its turn, the third why it got
-- nothing all the same, or why nobody could be taken off the queue.
-- A writer who is first and has to wait for readers is passed if it is dead.
-- A grant's message is the last that is done about it: nobody hears of one that is taken back.
-- Thousands of readers may be let in at once, and nobody else is served meanwhile. What is the same for
-- each of them is asked for once, and more and more of them are looked at together.
local MOST_TOGETHER = 100
local function grant(start, count, asker, lease)
    local granted, asked, trouble = false, false, stuck()
    -- The first in line, as they were read last, with their channels, and which of them is next. How the
    -- lock is held, for how long at least, and how many wait behind readers; nil: to be asked.
    local line, channels, at, most = nil, {}, 1, 1
    local mode, lasts, waiting
    while not trouble do
        if mode == nil then
            mode = redis.pcall('hget', lock, 'mode')
        end
        if not line then
            line = {redis.pcall('lindex', queue, 0)}
        elseif not line[at] then
            most = math.min(4 * most, MOST_TOGETHER)
            line, at = redis.pcall('lrange', queue, 0, most - 1), 1
            channels = channels_of(line)
        end
        local head = line[at]
        trouble = refused(line) or refused(head) or refused(mode)
        if type(head) ~= 'string' or trouble or mode == 'write'
            or not mode and redis.pcall('exists', lock) ~= 0 then
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
        -- The readers that were looked at and are next get it together: LPOP and HSET once for all of them.
        local together = {head}
        while head ~= asker and channel and not writes(head) and channels[at + #together]
            and line[at + #together] ~= asker
        do
            together[#together + 1] = line[at + #together]
        end
        trouble = refused(redis.pcall('lpop', queue, #together))
        if trouble then
            break
        elseif dead then
            -- It is passed.
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
            local refusal = hold(together, PROVISIONAL, lasts)
            waiting = waiting or behind(head)
            mode, lasts = writes(head) and 'write' or 'read', PROVISIONAL
            local details = string.format(
                '%.0f %d %s,%d,%.0f,%.0f', now(), PROVISIONAL, mode, waiting, start, count)
            local again = {}
            for i, owner in ipairs(together) do
                local heard = refusal or tell(channels[at + i - 1] or channel, owner, 'grant', details)
                if type(heard) == 'number' and heard > 0 then
                    granted = true
                else
                    if not refusal then
                        drop(owner, true)
                    end
                    mode, lasts, waiting = nil, nil, nil
                    if type(heard) == 'table' then
                        again[#again + 1] = owner
                    end
                end
            end
            for i = #again, 1, -1 do
                -- Not its fault: it has its place again, and asks for itself some time.
                enqueue('lpush', again[i])
            end
            if #again > 0 then
                break
            end
        end
        at = at + #together
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
