-- Takes a read-write lock to read or to write, or a place in its queue.
--
-- KEYS see ../hand_off.lua
-- ARGV as of ../lock/acquire.lua
-- reply: as of ../lock/acquire.lua. `whose`: 1 = one of Redisson's is among the holders
--
-- Every question is this one, as a lock's. A reader enters beside readers, unless somebody waits: who
-- waits then wants to write, and no later reader passes it.
-- Who holds the lock already asks so whether others wait.
local lease, owner = ARGV[1], ARGV[2]
database = ARGV[3] or 0
local came, sent = tonumber(ARGV[4] or ''), tonumber(ARGV[5] or '')
if now() == 0 then
    return redis.error_reply('NOPERM the right to TIME is missing')
end
local mode, left, foreign = mode_of()
if foreign then
    return foreign
elseif mode and redis.call('hexists', lock, owner) == 1 then
    return raise_hold(owner, lease) or -1 - length()
end
if mode == 'read' and writes(owner) and outlived() then
    mode, left = mode_of()
end
local function may_enter()
    return not mode or mode == 'read' and not writes(owner)
end
if may_enter() and redis.pcall('exists', queue, window) == 0 then
    return hold({owner}, lease) or 0
end

local place, fresh, refusal = stand(owner, came)
local open = not mode and window_left()
if mode ~= 'write' and (not open or place < 0) then
    if not mode and place >= 0 then
        pass_silent(owner, sent)
    end
    local _, asked, trouble = grant(now(), 1, owner, lease)
    if asked then
        return trouble or length()
    elseif trouble and place >= 0 then
        -- It may not take anybody off the queue, nor itself: it would wait for ever.
        redis.pcall('lrem', queue, 1, owner)
        return trouble
    end
    mode, left = mode_of()
    if place < 0 and may_enter() then
        return hold({owner}, lease) or 0
    end
    open = nil
    place = redis.pcall('lpos', queue, owner)
    place = type(place) == 'number' and place or -1
end
local whose = open and 2 or is_foreign() and 1 or 0
if whose == 1 and place > 1 and fresh == 0 then
    -- Redisson's release is told in public, and only the first two listen there. It has lasted: are
    -- they dead, or do they not know that they are first?
    announce(0, owner)
end
if refusal then
    ensure_master()
end
return {now(), open or left or PROVISIONAL, place, whose, fresh, refusal}
