-- Takes a lock, or makes an entry in its queue. Two parts run before the rest of this script:
-- free.lua takes a free lock without waiters, and queue_up.lua adds an owner to the queue while
-- another owner has the lock. If a part succeeds, nothing else runs.
--
-- KEYS see holder.lua
-- ARGV 1 lease in ms, 2 owner, 3 number of the database, if it is not 0 or if 4 follows; in every
--      request after the first: 4 the server's time in ms at which the owner began to wait, from an
--      earlier reply, 5 if this request may remove silent entries (`remove_silent`): the server's
--      present time in ms, as the client estimates it
-- reply: n >= 0: taken, and n processes wait; n < 0: this owner already had it, and -1 - n
--        processes wait; if the lock has tokens, {n, the last token of this hold}
--        {now, left, place, holder_kind, is_new} = queued; now: the server's time in ms; left: ms
--        after which another request may succeed (2000 if an owner behind others asks for the first
--        time); place: the number of entries ahead; holder_kind: 0 = a redlatch client holds the
--        lock, 1 = a Redisson client holds it, 2 = it is free, and a window is open; is_new: 1 =
--        the entry is new
--        `s us left place is_new` = the same as a text, if a redlatch client holds the lock; s, us:
--        the server's time in seconds, and the rest in microseconds
--        WRONGTYPE = the key holds no lock
--
-- A waiter sends this script in every request: in its first request, in a copy of it, in a poll,
-- and after a reconnect. So each request replaces a lost entry, and finds a grant whose message was
-- lost. If the lease was extended between two copies of a request, the second does not shorten it.
local lease, owner = ARGV[1], ARGV[2]
database = ARGV[3] or 0
local waiting_since, sent_at = tonumber(ARGV[4] or ''), tonumber(ARGV[5] or '')
local held_by, left, type_error = holder()
if type_error then
    return type_error
elseif not held_by and redis.call('exists', queue, window) == 0 then
    return make_holder(owner, lease) or granted_reply(0)
elseif held_by == owner then
    -- The script writes even if the write changes nothing. If a client waits for replicas, it waits
    -- for the writes of this connection, and the hold may have been written over another
    -- connection.
    redis.call('pexpire', lock, left < tonumber(lease) and lease or left)
    return take_tokens() or granted_reply(-1 - length())
end

-- TIME comes before the entry is made: if the server refuses TIME, no entry must stay in the queue.
now()
local refusal = not held_by and length() and (denied_grant() or denied('lindex', queue, '')
    or denied('lrem', queue, '', ''))
if refusal then
    return refusal
end
local place, is_new, is_first = enqueue(owner, waiting_since)
local holder_kind = held_by and not is_ours(held_by) and 1 or 0
if not held_by then
    left, holder_kind = window_left(), 2
    if not left then
        remove_silent(owner, sent_at)
        local granted, refusal = grant_head(now(), 1, owner, lease)
        if granted == owner then
            return refusal or granted_reply(length())
        elseif refusal then
            -- The lock has no holder, so no release would grant the lock to the asker.
            redis.call('lrem', queue, 1, owner)
            return refusal
        end
        left, holder_kind = PROVISIONAL, 0
        place = redis.call('lpos', queue, owner)
    end
elseif holder_kind == 1 and place > 1 and is_new == 0 then
    -- When the Redisson client releases the lock, it sends a message on the public channel. Only
    -- the first two processes in the queue listen to that channel. These two processes may have
    -- died, or may not know that they are first. This is at least the second request of this owner,
    -- so the Redisson client has held the lock for a while.
    announce(0, owner)
end
if held_by and is_first then
    send_wanted(held_by, lock)
end
return {now(), left, place, holder_kind, is_new}
