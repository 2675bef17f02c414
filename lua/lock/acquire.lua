-- Takes a lock, or an entry in its queue. Two parts run before the rest. free.lua takes a free lock
-- without waiters: EXISTS, HSET, PEXPIRE, and INCRBY if there are tokens. queue_up.lua serves an
-- owner that comes while another has the lock: HRANDFIELD, TIME, RPUSH, PTTL or LPOS, and PEXPIRE.
-- After either, nothing else runs.
--
-- KEYS see holder.lua
-- ARGV 1 lease in ms, 2 owner, 3 number of the database, if it is not 0 or more follows; in any
--      request but the first: 4 the time since when it waits, from a reply (ms, the server's
--      clock), 5 the present time of that clock, if the owner's client may judge others silent
--      (`pass_silent`)
-- reply: n from 0 on = taken, and n processes wait; n below 0 = it was this owner's already, and -1
--        - n wait; with tokens {n, the last of this hold's}
--        {now, left, place, whose, fresh} = refused; now: the server's time in ms; left: ms until
--        another request is worth it (2000 for an owner behind others that asks for the first
--        time); place 0 = first in line; whose: 0 = a holder of ours, 1 = Redisson's, 2 = none, a
--        window is open; fresh: 1 = the entry is new
--        WRONGTYPE = the key holds no lock
--
-- Every request is this one: the first, a copy, a poll, the one after a reconnect. So a lost entry
-- is replaced, and a grant whose message was lost is found. A late copy does not shorten a lease
-- that was extended since.
local lease, owner = ARGV[1], ARGV[2]
database = ARGV[3] or 0
local came, sent = tonumber(ARGV[4] or ''), tonumber(ARGV[5] or '')
local who, left, foreign = holder()
if foreign then
    return foreign
elseif not who and redis.call('exists', queue, window) == 0 then
    return hold(owner, lease) or taken(0)
elseif who == owner then
    -- The script writes even if that changes nothing. A client that waits for replicas waits for
    -- the writes of its own connection, and this hold may have been written on another one.
    redis.call('pexpire', lock, left < tonumber(lease) and lease or left)
    return take_tokens() or taken(-1 - length())
end

-- TIME comes before the entry: if the server refuses TIME, no entry must stay there.
now()
local trouble = not who and length() and (stuck() or denied('lindex', queue, '')
    or denied('lrem', queue, '', ''))
if trouble then
    return trouble
end
local place, fresh = stand(owner, came)
local whose = who and not is_ours(who) and 1 or 0
if not who then
    left, whose = window_left(), 2
    if not left then
        pass_silent(owner, sent)
        local granted, trouble = grant_head(now(), 1, owner, lease)
        if granted == owner then
            return trouble or taken(length())
        elseif trouble then
            -- The lock is granted to nobody, so the asker would wait for ever.
            redis.call('lrem', queue, 1, owner)
            return trouble
        end
        left, whose = PROVISIONAL, 0
        place = redis.call('lpos', queue, owner)
    end
elseif whose == 1 and place > 1 and fresh == 0 then
    -- Redisson's client releases by a public message, and only our first two in line listen for it.
    -- The hold has lasted for a while: the first two may be dead, or not know that they are first.
    announce(0, owner)
end
return {now(), left, place, whose, fresh}
