-- Takes a read-write lock to read or to write, or makes an entry in its queue.
--
-- KEYS see ../hand_off.lua
-- ARGV and reply see ../lock/acquire.lua. `holder_kind`: 1 = one of the holders is a Redisson
-- client
--
-- A waiter sends this script in every request, as with ../lock/acquire.lua. If readers hold the
-- lock, another reader enters only if there is no waiter: the first waiter wants to write, and no
-- later reader may pass it.
local lease, owner = ARGV[1], ARGV[2]
database = ARGV[3] or 0
local waiting_since, sent_at = tonumber(ARGV[4] or ''), tonumber(ARGV[5] or '')
now()
local mode, left, type_error = mode_of()
if type_error then
    return type_error
elseif mode and redis.call('hexists', lock, owner) == 1 then
    return raise_hold(owner, lease) or -1 - length()
end
if mode == 'read' and writes(owner) and free_if_all_dead() then
    mode, left = mode_of()
end
local function may_enter()
    return not mode or mode == 'read' and not writes(owner)
end
if may_enter() and redis.call('exists', queue, window) == 0 then
    return make_holders({owner}, lease) or 0
end

local refusal = mode ~= 'write' and length() and (denied_grant() or denied('lrem', queue, '', ''))
if refusal then
    return refusal
end
local place, is_new, is_first = enqueue(owner, waiting_since)
local open_for = not mode and window_left()
if mode ~= 'write' and not open_for then
    if not mode then
        remove_silent(owner, sent_at)
    end
    local _, reached_asker
    _, reached_asker, refusal = grant(now(), 1, owner, lease)
    if reached_asker then
        return refusal or length()
    elseif refusal then
        -- There may be no holder, and so no release that would grant the lock to the asker.
        redis.call('lrem', queue, 1, owner)
        return refusal
    end
    mode, left = mode_of()
    place = redis.call('lpos', queue, owner)
end
local holder_kind = open_for and 2 or has_redisson_holder() and 1 or 0
if holder_kind == 1 and place > 1 and is_new == 0 then
    -- When the Redisson client releases the lock, it sends a message on the public channel. Only
    -- the first two processes in the queue listen to that channel. These two processes may have
    -- died, or may not know that they are first. This is not the first request of this owner, so
    -- the hold has lasted for a while.
    announce(0, owner)
end
-- The maximum number of holders that get a message. The other holders find the waiter at their
-- renewals.
local MAX_TOLD = 100
if mode and is_first then
    for _, holder in ipairs(redis.pcall('hrandfield', lock, MAX_TOLD)) do
        send_wanted(holder, lock)
    end
end
return {now(), open_for or left or PROVISIONAL, place, holder_kind, is_new}
