-- Takes a lock, or makes an entry in its queue. Two parts run before the rest of this script.
-- free.lua takes a free lock without waiters, by EXISTS, HSET, PEXPIRE, and INCRBY if there are
-- tokens. queue_up.lua adds an owner to the queue while another owner has the lock. It uses
-- HRANDFIELD, TIME, RPUSH, PEXPIRE, and either PTTL or LPOS. If a part succeeds, nothing else runs.
--
-- KEYS see holder.lua
-- ARGV 1 lease in ms, 2 owner, 3 number of the database, if it is not 0 or if 4 follows; in every
--      request after the first: 4 the time since which the owner waits, from a reply (ms, the
--      server's clock), 5 if the owner's client may judge others silent (`pass_silent`): the
--      present time of that clock
-- reply: n from 0 on = taken, and n processes wait; n below 0 = it was this owner's already, and
--        -1 - n processes wait; if the lock has tokens, {n, the last token of this hold}
--        {now, left, place, whose, fresh} = refused; now: the server's time in ms; left: ms after
--        which another request may succeed (2000 if an owner behind others asks for the first
--        time); place: the number of entries ahead; whose: 0 = the holder is ours, 1 = it is
--        Redisson's, 2 = no holder, and a window is open; fresh: 1 = the entry is new
--        WRONGTYPE = the key holds no lock
--
-- A waiter sends this script in every request: in its first one, in a copy, in a poll, and after a
-- reconnect. So each request replaces a lost entry, and finds a grant whose message was lost. A
-- late copy does not shorten a lease that was extended since.
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

-- TIME comes before the entry is made: if the server refuses TIME, no entry must stay in the queue.
now()
local trouble = not who and length() and (stuck() or denied('lindex', queue, '')
    or denied('lrem', queue, '', ''))
if trouble then
    return trouble
end
local place, fresh, is_first = stand(owner, came)
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
    -- When Redisson's client releases, it sends a public message, and only our first two processes
    -- in line listen for it. This owner asks a second time, so Redisson's client has held the lock
    -- for a while. The first two may have died, or may not know that they are first.
    announce(0, owner)
end
if who and is_first then
    say_wanted(who, database, lock)
end
return {now(), left, place, whose, fresh}
