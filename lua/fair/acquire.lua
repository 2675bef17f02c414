-- Takes a fair lock, or makes an entry in its queue.
--
-- KEYS and ARGV 1 to 3: queue.lua
-- ARGV 4 lease in ms, 5 owner, 6 whether an earlier reply to this owner was "queued": 1 and 2 =
--      yes; 0 = no; 3 = no, and its client has no other waiter in the queue and does not listen
--      yet, 7.. with 1: the other queued owners of the same client; with 0 and 3: the companions,
--      which are owners that get the entries behind this one, in this order
-- reply: {1, followers, now} = taken; {2, followers, now} = this owner already had it; followers:
--        the numbers of the waiters of the same client directly behind this owner, in their order,
--        separated by commas, or '-'; now: the server's time in ms if there are companions,
--        otherwise 0
--        {0, now, ask_after, by_redisson, was_requeued} = queued; ask_after: ms after which the
--        owner may ask again if it gets no message (-1: only after a message, as always for its
--        companions); by_redisson: 1 = the message may come from a Redisson client, on each owner's
--        own channel, because a Redisson client holds the lock or (at the first request) waits
--        ahead; was_requeued: 1 = the owner had lost its entry, and has a new entry now
--        {3, now} = only if ARGV 6 is 2: the owner has lost its entry and got no new one
--
-- The owner names one acquisition, so the request may be sent again: a copy gets the same grant,
-- and a waiter keeps its entry. If a waiter was queued and has no entry now, another script has
-- dropped it from the head, because its process did not listen or could not send keep-alives. The
-- waiter then goes back to the head. The same request also brings back all dropped waiters of the
-- same client that ARGV 7.. names, in the order in which they came. (With ARGV 6 = 2, the request
-- names no other waiters: after a reconnect, each of a thousand waiters may send such a request.) A
-- grant changes no score (docs/fair-lock.md, "Scores"). While the lock is held, the script drops no
-- waiter, because a stopped process may continue.
local lease, owner, was_queued = ARGV[4], ARGV[5], ARGV[6] == '1' or ARGV[6] == '2'
-- A client's first waiter may be granted the lock before the client listens. To flag this waiter,
-- its score is half a ms lower. The waiter's next request or keep-alive removes the flag. The
-- client's later waiters need no flag: when one of them becomes first, the client listens or is
-- dead.
local flag_offset = ARGV[6] == '3' and 0.5 or 0
-- In ms: if a Redisson waiter is first and does not take the free lock within this time, the next
-- waiter sends a request, and the Redisson waiter gets another message.
local redisson_grace = 1000

local held_by, left, type_error = holder()
if type_error then
    return type_error
end
if held_by == owner then
    raise(left, lease)
end
-- Whether the holder's process may want a message when the first waiter queues (`send_wanted` in
-- ../prelude.lua).
local may_send_wanted = held_by and string.find(held_by, '[13579]$')
    and tonumber(number(held_by)) >= 2^50 and not redis.call('lrange', queue, 0, 0)[1]

-- Returns the number n of Redisson's waiters in the queue. If a live redlatch waiter has the
-- highest score, all Redisson waiters are ahead of it, because a Redisson waiter behind it would
-- have a higher score. The function then computes n from the highest score, which is now + n times
-- Redisson's wait + at most the fair wait. (If `remainder` is less than half the fair wait, the
-- waiter has missed keep-alives, and its score may not show n.)
local function count_redissons()
    local highest = redis.call('zrevrange', timeouts, 0, 0, 'withscores')
    if not highest[1] then
        return 0
    end
    local time_ahead = tonumber(highest[2]) - now()
    local remainder = time_ahead % redisson_wait
    if time_ahead > 0 and is_ours(highest[1])
        and remainder <= fair_wait and remainder >= fair_wait / 2
    then
        return math.floor(time_ahead / redisson_wait)
    end
    local count = 0
    for _, id in ipairs(redis.call('lrange', queue, 0, -1)) do
        count = count + (is_ours(id) and 0 or 1)
    end
    return count
end

-- Adds these waiters to the set. Returns how many of them were not in the set before. A waiter that
-- is in the set keeps its score, because the scores of the Redisson waiters behind it are based on
-- this score. `flagged`: the index of the waiter whose score is lowered by `flag_offset`.
local function set_scores(ids, redissons_ahead, flagged)
    local score, scores = now() + fair_wait + redisson_wait * redissons_ahead, {}
    for i, id in ipairs(ids) do
        scores[#scores + 1] = i == flagged and score - flag_offset or score
        scores[#scores + 1] = id
    end
    return redis.call('zadd', timeouts, 'nx', unpack(scores))
end

-- Adds these waiters to the list. If that fails, removes them from the set. Returns the list's
-- length.
local function push(ids, command, ...)
    local length = redis.pcall(command, queue, ...)
    if type(length) == 'table' then
        redis.pcall('zrem', timeouts, unpack(ids))
        error(length)
    end
    return length
end

-- Adds the owner and its companions to the end of the queue. Returns the owner's position.
-- `flagged`: the index of the waiter whose score is lowered by `flag_offset`. It is 2 if the owner
-- gets the lock at once, so that its first companion becomes the head of the queue; otherwise 1.
local function enqueue(redissons_ahead, flagged)
    local ids = {}
    for i = 5, #ARGV do
        if i ~= 6 and ARGV[i] ~= held_by then
            ids[#ids + 1] = ARGV[i]
        end
    end
    if set_scores(ids, redissons_ahead, flagged) == #ids then
        return push(ids, 'rpush', unpack(ids)) - #ids
    end
    -- This request is a copy: some of the owners already have entries.
    for _, id in ipairs(ids) do
        if not redis.call('lpos', queue, id) then
            push({id}, 'rpush', id)
        end
    end
    return redis.call('lpos', queue, owner)
end

-- Adds the owners in `ids` that have no entry at the head of the queue, in the order of their
-- numbers. Only earlier waiters of the same client remain ahead of the added owners. (Waiters
-- behind a Redisson waiter do not count as earlier.)
local function requeue(ids)
    local all, in_queue, earlier, leading_ours = redis.call('lrange', queue, 0, -1), {}, {}, 0
    for i, id in ipairs(all) do
        in_queue[id] = true
        if leading_ours == i - 1 and is_ours(id) then
            leading_ours = i
            if client(id) == client(owner) then
                earlier[#earlier + 1] = {tonumber(number(id)), i}
            end
        end
    end
    local returning = {}
    for _, id in ipairs(ids) do
        if id ~= held_by and not in_queue[id] then
            in_queue[id] = true
            returning[#returning + 1] = id
        end
    end
    local function by_number(one, other)
        return tonumber(number(one)) < tonumber(number(other))
    end
    table.sort(returning, by_number)
    table.sort(earlier, function(one, other) return one[1] < other[1] end)
    local positions, position, next_earlier = {}, 0, 1
    for i, id in ipairs(returning) do
        while earlier[next_earlier] and earlier[next_earlier][1] < tonumber(number(id)) do
            position = math.max(position, earlier[next_earlier][2])
            next_earlier = next_earlier + 1
        end
        positions[i] = position
    end
    -- A Redisson waiter must have a higher score than the redlatch waiters ahead of it, because
    -- `count_redissons` relies on this.
    local min_score = now() + fair_wait + 1
    local raised = leading_ours + 1
    local last = #returning
    while last > 0 do
        -- Takes the last owners in `returning` that go behind the same entry, at most 500 at a
        -- time.
        local group, at = {}, positions[last]
        while last > 0 and positions[last] == at and #group < 500 do
            group[#group + 1] = returning[last]
            last = last - 1
        end
        -- These waiters were in the queue before, so they must return even if the server is out of
        -- memory. After the ZREM, such a server refuses no command of this script.
        redis.call('zrem', timeouts, unpack(group))
        if at == 0 then
            set_scores(group, 0)
            push(group, 'lpush', unpack(group))
        else
            for _, id in ipairs(group) do
                set_scores({id}, 0)
                push({id}, 'linsert', 'after', all[at], id)
            end
        end
        for i = at + 1, raised - 1 do
            local score = redis.call('zscore', timeouts, all[i])
            if not score or tonumber(score) >= min_score then
                break
            end
            redis.call('zadd', timeouts, min_score, all[i])
        end
        raised = math.min(raised, at + 1)
    end
end

local has_companions = ARGV[7] and not was_queued
if held_by == owner then
    if has_companions then
        enqueue(count_redissons(), 1)
    end
    return {2, '-', has_companions and now() or 0}
end

if was_queued then
    local score = redis.call('zscore', timeouts, owner)
    if score and score % 1 ~= 0 then
        redis.call('zrem', timeouts, '')
        redis.call('zadd', timeouts, 'xx', score + 0.5, owner)
    end
end

local others, was_requeued = {}, 0
if was_queued and not redis.call('lpos', queue, owner) then
    if ARGV[6] == '2' then
        if not held_by then
            try_hand_on()
        end
        return {3, now()}
    end
    local ids = {owner}
    for i = 7, #ARGV do
        others[ARGV[i]] = true
        ids[#ids + 1] = ARGV[i]
    end
    if not held_by then
        require_hand_on_rights()
    end
    requeue(ids)
    was_requeued = 1
end

if not held_by then
    local head, granted, dropped = hand_on({[owner] = true}, others)
    if granted then
        held_by, left = head, PROVISIONAL
    elseif head == owner or not head then
        if has_companions then
            -- The owner gets the lock, and its companions get entries. A command that may be
            -- refused comes before the first change. Each later change can be undone.
            redis.call('zadd', timeouts, 'xx', 0, '')
            require_hand_on_rights()
            require_right('lrem', queue, 0, '')
            enqueue(count_redissons(), 2)
            local succeeded, refusal = pcall(make_holder, owner, lease)
            if not succeeded then
                for i = 5, #ARGV do
                    remove(ARGV[i])
                end
                error(refusal)
            end
        elseif head then
            -- The owner already waits, so it must get the lock even if the server is out of memory.
            -- After the ZREM, such a server refuses no command.
            redis.call('zrem', timeouts, '')
            make_holder(owner, lease)
        else
            take_anew(owner, lease)
        end
        local behind = redis.call('lrange', queue, 0, FOLLOWERS - 1)
        -- The end of a lease sends no message. If the lease may end before the next keep_alive, the
        -- new head needs a message now, so that it asks when the lease ends.
        if behind[1] and tonumber(lease) < PROVISIONAL then
            send_ask(behind[1])
        end
        return {1, followers(owner, behind, 1), has_companions and now() or 0}
    elseif dropped or was_queued then
        -- If a waiter behind the head sends another request, the head has not taken the lock. So
        -- the head has missed its message, and gets another one.
        send_ask(head)
    end
end

-- The first reply to a queued owner has already said whether Redisson waiters are ahead of it. If
-- an owner comes back, no Redisson waiter is ahead of it.
local redissons_ahead = was_queued and 0 or count_redissons()
local position
if was_queued then
    position = redis.call('lpos', queue, owner)
else
    position = enqueue(redissons_ahead, 1)
end
local ask_after = -1
if held_by and position == 0 then
    ask_after = math.max(1, left)
elseif not held_by and position == 1 then
    ask_after = redisson_grace
end
local by_redisson = held_by and not is_ours(held_by) or redissons_ahead > 0
if may_send_wanted then
    send_wanted(held_by, lock)
end
return {0, now(), ask_after, by_redisson and 1 or 0, was_requeued}
