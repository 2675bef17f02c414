-- Takes a lock, or a place in its queue.
-- free.lua, which runs before all of it, is what is left of this for a lock that is free and that nobody
-- waits for: EXISTS, HSET, PEXPIRE, and INCRBY where there are tokens. Then nothing else runs.
--
-- KEYS see holder.lua
-- ARGV 1 lease in ms, 2 owner, 3 number of the database, if it is not 0 or more follows; of a question
--      that is not its first: 4 since when it waits, as a reply has told (ms, the server's clock), 5 what
--      that clock shows now, if its client may say who is silent (`pass_silent`)
-- reply: n from 0 on = taken, and n processes wait; n below 0 = it was this owner's already, and
--        -1 - n wait; with tokens {n, the last of this hold's}
--        {now, left, place, whose, fresh} = refused; now: the server's time in ms; left: ms until it
--        is worth another question; place 0 = first in line; whose: 0 = a holder of ours, 1 =
--        Redisson's, 2 = nobody's, a window is open; fresh: 1 = the place is new
--        {now, left, -1, whose, 0, refusal} = refused, and without a place, since that was
--        refused: this client waits on the public channel
--        WRONGTYPE = what is there is no lock
--
-- Every question is this one: the first, one sent again, a poll, the one after a reconnect. So a
-- place that was lost is taken anew, and a grant whose message was lost is found.
-- A copy that comes late cuts no lease that was made longer since.
local lease, owner = ARGV[1], ARGV[2]
database = ARGV[3] or 0
local came, sent = tonumber(ARGV[4] or ''), tonumber(ARGV[5] or '')
if now() == 0 then
    return redis.error_reply('NOPERM the right to TIME is missing')
end

if redis.pcall('exists', lock, queue, window) == 0 then
    return hold(owner, lease) or taken(0)
end
local who, left, foreign = holder()
if foreign then
    return foreign
elseif who == owner then
    -- Also where that changes nothing: whoever waits for replicas waits for what its own connection
    -- wrote, and this hold was perhaps written on another.
    redis.call('pexpire', lock, left < tonumber(lease) and lease or left)
    return take_tokens() or taken(-1 - length())
end

local place, fresh, refusal = stand(owner, came)
local whose = who and not is_ours(who) and 1 or 0
if not who then
    left, whose = window_left(), 2
    if not left or place < 0 then
        if place >= 0 then
            pass_silent(owner, sent)
        end
        local granted, trouble = grant_head(now(), 1, owner, lease)
        if granted == owner then
            return trouble or taken(length())
        elseif not granted and place < 0 then
            return hold(owner, lease) or taken(0)
        elseif trouble then
            -- It may not take anybody off the queue, nor itself: it would wait for ever.
            redis.pcall('lrem', queue, 1, owner)
            return trouble
        end
        left, whose = PROVISIONAL, 0
        place = redis.pcall('lpos', queue, owner)
        place = type(place) == 'number' and place or -1
    end
elseif whose == 1 and place > 1 and fresh == 0 then
    -- Redisson's release is told in public, and only the first two listen there. It has lasted: are
    -- they dead, or do they not know that they are first?
    announce(0, owner)
end
if refusal then
    ensure_master()
end
return {now(), left, place, whose, fresh, refusal}
