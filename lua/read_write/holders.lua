-- Prepended to every script of a read-write lock, after ../hand_off.lua: the lock's holders, and
-- how waiters get the lock. docs/read-write-lock.md has the reasons.
--
-- KEYS, and the variables that each script sets, see ../hand_off.lua
--
-- The fields of the lock's hash are its owners: `uuid:number` reads, `uuid:number:write` writes.
-- The entries of the queue have the same form, so an entry shows whether its owner waits to read or
-- to write.
--
-- Invariant: when one of these scripts ends, the first owner in the queue waits for one of four
-- reasons: a writer holds the lock; readers hold it and the first owner wants to write; the lock is
-- free and a window is open; or the server refused a command that a grant needs.

local function writes(owner)
    return string.sub(owner, -6) == ':write'
end

-- Returns the timeout key of a reader's level `n`, which exists as long as this level. (A redlatch
-- reader has one level.) If this key is missing, the next Redisson reader that leaves deletes the
-- lock.
local prefix = (string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}') .. ':'
local function timeout(owner, n)
    return prefix .. owner .. ':rwlock_timeout:' .. n
end

local denied_plain_grant = denied_grant
local function denied_grant()
    return denied_plain_grant() or denied('lindex', queue, '') or denied('lrange', queue, '', '')
        or denied('set', timeout('', 1), '')
end

-- Returns how the lock is held, `read` or `write`, and its time to live; nil if it is free. The
-- third result is an error if the key holds no read-write lock. A read-write lock always has a mode
-- and a time to live. Any other hash is an error, because a wait for it would never end.
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

-- Returns whether any of the holders is a Redisson client.
local function has_redisson_holder()
    for _, field in ipairs(redis.pcall('hkeys', lock)) do
        if field ~= 'mode' and not is_ours(field) then
            return true
        end
    end
    return false
end

-- Raises the time to live of a key to `lease`, unless it is longer already. The function always
-- writes: see lock/acquire.lua. Returns 0 if the key does not exist.
local function raise(key, lease)
    local left = redis.call('pttl', key)
    return redis.call('pexpire', key, left < tonumber(lease) and lease or left)
end

-- Makes the lease of `owner`, which has the lock, at least this long. Returns nil, or the server's
-- refusal. If a reader's process was stopped, its timeout key may have expired while another reader
-- kept the lock. In that case this function creates the key again, as lock/renew.lua does. Without
-- it, the next reader that leaves would find no other reader, and would free the lock for a writer.
local function raise_hold(owner, lease)
    if not writes(owner) and raise(timeout(owner, 1), lease) == 0 then
        local refusal = refused(redis.pcall('set', timeout(owner, 1), 1, 'px', lease))
        if refusal then
            return refusal
        end
    end
    raise(lock, lease)
end

-- Makes these owners holders: one writer, or readers. The mode of the present holders must allow
-- this. Returns nil, or the server's refusal: in that case nothing has changed. A lock must have a
-- time to live, and a reader its timeout key, so commands that may be refused come first. (The
-- function checks the right to PEXPIRE, but does not try PEXPIRE first: after an accepted first
-- write, a server that is out of memory would refuse none of the script's commands.) `given_ttl`:
-- the time to live that this script has already given the lock, or nil.
local function make_holders(owners, lease, given_ttl)
    local left = given_ttl or redis.pcall('pttl', lock)
    local refusal = refused(left) or not given_ttl and denied('pexpire', lock, '') or nil
    local is_writer, timeouts, fields = writes(owners[1]), {}, {}
    if is_writer or left == -2 then
        fields = {'mode', is_writer and 'write' or 'read'}
    end
    for i, owner in ipairs(owners) do
        if not refusal and not is_writer then
            timeouts[i] = timeout(owner, 1)
            refusal = refused(redis.pcall('set', timeouts[i], 1, 'px', lease))
        end
        fields[#fields + 1], fields[#fields + 2] = owner, 1
    end
    refusal = refusal or refused(redis.pcall('hset', lock, unpack(fields)))
    if refusal then
        if #timeouts > 0 then
            redis.pcall('del', unpack(timeouts))
        end
    elseif left < tonumber(lease) then
        redis.call('pexpire', lock, lease)
    end
    return refusal
end

-- Returns the remaining lease of a reader's longest level, below 0 if all levels have expired.
-- (MAX_COUNT limits the loop, because a wrong number of levels in the hash could block the server.)
local MAX_COUNT = 1000
local function longest_of(reader, levels)
    local longest = -2
    for n = math.min(tonumber(levels) or 0, MAX_COUNT), 1, -1 do
        longest = math.max(longest, redis.call('pttl', timeout(reader, n)))
    end
    return longest
end

-- Examines the holders other than `owner`. Returns the longest remaining lease of the readers (0:
-- all have expired), whether another owner writes, whether any reader is redlatch's, and the dead
-- readers whose fields must be removed. These dead readers are redlatch's, and if there are many
-- readers also Redisson's. (If there are few readers, the fields of Redisson's dead readers remain:
-- without its field, a late unlock by Redisson would throw an error.)
local MANY, SAMPLE_SIZE = 64, 16
local function examine_readers(owner, size)
    local fields = redis.call('hgetall', lock)
    local longest, writer, has_ours, dead = 0, false, false, {}
    for i = 1, #fields, 2 do
        local field = fields[i]
        if field == owner or field == 'mode' then
            -- Skip the caller's own hold, and the field `mode`, which names no owner.
        elseif writes(field) then
            writer = true
        else
            local left = longest_of(field, fields[i + 1])
            longest = math.max(longest, left)
            if left >= 0 or not is_ours(field) and size <= MANY then
                has_ours = has_ours or is_ours(field)
            else
                dead[#dead + 1] = field
            end
        end
    end
    return longest, writer, has_ours, dead
end

-- For a lock with many readers: examines a few readers at random. Returns nil if `examine_readers`
-- must examine all readers. There are three such cases: all examined leases have expired; no live
-- redlatch reader was examined; or the lock's time to live may come from the lease of `owner`
-- alone. Otherwise returns the lock's time to live and the dead readers among the examined readers.
-- The lock then keeps its time to live, which may come from a reader that has left. When only MANY
-- readers are left, `examine_readers` corrects this time. If all readers die, `free_if_all_dead`
-- corrects it.
local function sample_readers(owner)
    local fields = redis.pcall('hrandfield', lock, -SAMPLE_SIZE, 'withvalues')
    if refused(fields) then
        return nil
    end
    local longest, has_ours, dead = 0, false, {}
    for i = 1, #fields, 2 do
        local field = fields[i]
        if field ~= owner and field ~= 'mode' then
            local left = longest_of(field, fields[i + 1])
            longest = math.max(longest, left)
            if left < 0 then
                dead[#dead + 1] = field
            elseif is_ours(field) then
                has_ours = true
            end
        end
    end
    local left = redis.call('pttl', lock)
    local is_its_own = redis.call('pttl', timeout(owner, 1)) >= left - 2
    if longest > 0 and has_ours and not (is_its_own and left > 2 * longest) then
        return left, dead
    end
end

-- Ends the hold of `owner`, which has one. Returns whether the lock is free now, and whether only
-- Redisson's readers hold it now. The third result is the server's refusal: in that case nothing
-- has changed. As in Redisson, the lock's new time to live is the longest remaining lease of the
-- other readers. If all their leases have expired, the lock is free. The function does all its
-- reads before its first change. A server that is out of memory allows DEL and HDEL.
local function end_hold(owner)
    -- (If a writer holds the lock, it has at most three fields: the mode, the writer, and the
    -- writer's own read hold.)
    local size = writes(owner) and 3 or redis.call('hlen', lock)
    local longest, writer, has_ours, dead, left = 0, false, false, {}, nil
    if size > MANY and not writes(owner) and redis.call('hget', lock, 'mode') == 'read' then
        left, dead = sample_readers(owner)
        has_ours = true
    end
    if not left and size > 2 then
        longest, writer, has_ours, dead = examine_readers(owner, size)
    end
    local free = not left and longest == 0 and not writer
    -- (If a redlatch reader remains, no message is needed.)
    local refusal = public and (free or not has_ours or writes(owner))
        and (length() > 0 and denied_grant() or not now())
    if refusal then
        return nil, nil, refusal
    elseif free then
        redis.call('del', lock)
    else
        if writes(owner) then
            -- This HSET changes nothing, but tests whether the server would refuse the HSET below.
            -- If the HSET below failed after the HDEL of the owner, no owner could take the lock.
            -- (This HDEL removes nothing. After it, a server that is out of memory refuses
            -- nothing.)
            redis.call('hdel', lock, '')
            redis.call('hset', lock, 'mode', 'write')
        end
        redis.call('hdel', lock, owner)
        for i = 1, #dead, MAX_COUNT do
            redis.pcall('hdel', lock, unpack(dead, i, math.min(i + MAX_COUNT - 1, #dead)))
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
    return free, not has_ours
end

-- Frees a lock with many readers if all of them have died. A writer's request calls this function.
-- Returns whether the function has examined the readers. The lock's time to live may come from a
-- reader that left long ago (see `sample_readers`). Usually the release of another reader corrects
-- that time. If all readers have died, there is no such release.
local function free_if_all_dead()
    if redis.call('hlen', lock) > MANY then
        -- (No owner is named '', so this call ends no owner's hold. It only removes dead readers,
        -- and frees the lock if all readers are dead.)
        end_hold('')
        return true
    end
end

-- Returns how many waiters remain when `owner` gets the lock. If `owner` is a reader, all readers
-- up to the first writer get the lock, too, so that writer and the waiters behind it remain.
local function waiters_behind(owner)
    if writes(owner) then
        return length()
    end
    local entries = redis.call('lrange', queue, 0, -1)
    for i, entry in ipairs(entries) do
        if writes(entry) then
            return #entries - i + 1
        end
    end
    return 0
end

-- Returns the channels of these owners up to the first writer; false for an owner whose process
-- does not listen. Unlike `channel_of`, this function sends one command for all owners.
local function channels_of(entries)
    local channels = {}
    for i, owner in ipairs(entries) do
        if writes(owner) then
            break
        end
        channels[i] = own_channel(owner)
    end
    local subscribers = redis.call('pubsub', 'numsub', unpack(channels))
    for i = 1, #channels do
        channels[i] = subscribers[2 * i] > 0 and channels[i]
    end
    return channels
end

-- Grants the lock to the first owner in the queue that listens. If that owner is a reader, all
-- readers up to the next writer get the lock, too. The process of `asker` reads the reply, so
-- `asker` gets the full `lease` and no message. Returns whether any owner was granted the lock,
-- whether the function reached the asker, and the server's refusal if the asker or an owner before
-- it was refused. (The caller has called `denied_grant`.) A dead writer at the head is removed even
-- while readers have the lock.
--
-- One call may grant the lock to thousands of readers, and meanwhile the server serves no other
-- client. So the function reads a value only once if it is equal for all readers, and reads up to
-- MAX_BATCH entries at a time.
local MAX_BATCH = 100
local function grant(chain_start, chain_count, asker, lease)
    local granted, reached_asker, refusal = false, false, nil
    -- The queue's first entries as they were last read, their channels, the index in `entries` of
    -- the next entry, and how many entries to read at a time.
    local entries, channels, at, batch_size = nil, {}, 1, 1
    -- The lock's mode, the time to live that this call has given the lock, and how many waiters
    -- remain behind the readers; nil: not known.
    local mode, given_ttl, waiter_count
    while true do
        if mode == nil then
            mode = redis.call('hget', lock, 'mode')
        end
        if not entries then
            entries = {redis.call('lindex', queue, 0)}
        elseif not entries[at] then
            batch_size = math.min(4 * batch_size, MAX_BATCH)
            entries, at = redis.call('lrange', queue, 0, batch_size - 1), 1
            channels = channels_of(entries)
        end
        local head = entries[at]
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
        -- The next readers whose channels are known get the lock together: one LPOP and one HSET
        -- for all of them.
        local batch = {head}
        while head ~= asker and channel and not writes(head) and channels[at + #batch]
            and entries[at + #batch] ~= asker
        do
            batch[#batch + 1] = entries[at + #batch]
        end
        redis.call('lpop', queue, #batch)
        if dead then
            if writes(head) then
                waiter_count = nil
            end
        elseif head == asker then
            reached_asker, refusal = true, make_holders(batch, lease)
            if refusal then
                break
            end
            granted, mode = true, nil
        else
            refusal = make_holders(batch, PROVISIONAL, given_ttl)
            if refusal then
                break
            end
            waiter_count = waiter_count or waiters_behind(head)
            mode, given_ttl = writes(head) and 'write' or 'read', PROVISIONAL
            local details = string.format(
                '%.0f %d %s,%d,%.0f,%.0f', now(), PROVISIONAL, mode, waiter_count,
                chain_start, chain_count)
            for i, owner in ipairs(batch) do
                send_message(channels[at + i - 1] or channel, owner, 'grant', details)
            end
            granted = true
        end
        at = at + #batch
    end
    return granted, reached_asker, refusal
end

-- Hands the lock on as `hand_on` does. If a writer's release grants the lock to redlatch's readers,
-- the function also sends Redisson's readers a message, because they may read, too. Without it they
-- would sleep until the last redlatch reader leaves, or until the end of the lease they read.
local function hand_over(start_or_age, chain_count, message)
    local reply = hand_on(start_or_age, chain_count, message, grant)
    if reply == 1 and message == '1' and redis.call('hget', lock, 'mode') == 'read' then
        local subscribers = redis.pcall('pubsub', 'numsub', public, public .. ':redlatch')
        if (refused(subscribers) or subscribers[2] > subscribers[4])
            and publish_refused(message)
        then
            return 5
        end
    end
    return reply
end

-- Grants the lock to the waiters that may have it now. If a window is open, tells the first waiter
-- when the window ends instead.
local function grant_next()
    local mode = redis.pcall('hget', lock, 'mode')
    local left = not mode and window_left()
    if left then
        announce(left)
    elseif (not mode or mode == 'read') and length() > 0 and not denied_grant() then
        grant(now(), 1)
    end
end

-- Ends the hold of `owner`. Returns false if the owner has none; 4 if others still hold the lock;
-- 5: as 4, but the server refused a message; otherwise the result of `hand_on`.
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
    -- As in Redisson, the message of a writer's release wakes all waiters, and the message of a
    -- reader's release wakes one waiter.
    local message = writes(owner) and '1' or '0'
    local free, only_redisson, refusal = end_hold(owner)
    if refusal then
        return refusal
    elseif free then
        return hand_over(start_or_age, chain_count, message)
    elseif only_redisson and not writes(owner) then
        -- Only Redisson's readers are left. They send a message on the public channel when they
        -- leave, so the script must make the first waiter listen to this channel. (Before that,
        -- `grant_next` removes dead waiters from the head of the queue, and grants the lock to
        -- readers behind them.)
        grant_next()
        announce(0)
    elseif writes(owner) then
        -- The writer also holds the lock as a reader, and keeps that hold. (Redisson's own scripts
        -- send no message in this case, so Redisson's readers would sleep.)
        grant(now(), 1)
        return publish_refused(message) and 5 or 4
    end
    return 4
end
