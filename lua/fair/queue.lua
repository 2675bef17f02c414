-- Prepended to every script of a fair lock, after ../prelude.lua: the queue of waiters, and how the
-- first waiter gets the lock.
--
-- KEYS 1 the lock, 2 the queue (a list), 3 the timeouts (a sorted set: waiter -> its score)
-- ARGV 1 `a,b`, two times in ms: a is the fair wait (docs/fair-lock.md), and b is the time that a
--      Redisson waiter adds to the scores behind it (its fairLockWaitTimeout), 2 prefix of the
--      channels of Redisson's waiters, 3 number of the database; the arguments of each script
--      follow
--
-- Invariant: if the lock is free when one of these scripts ends, the queue is empty, or its head is
-- a Redisson waiter that got a message or sends requests by itself. So the next waiter gets the
-- lock without the help of another thread.
--
-- The server may refuse a command for lack of rights or memory, but this must happen before the
-- script has changed anything. So if a command might be refused, the script first tries it in a
-- form that changes nothing. (Each function adds a twelfth of a microsecond to a run, so functions
-- that are seldom needed are created where they are used.)
local lock, queue, timeouts = KEYS[1], KEYS[2], KEYS[3]
local channels, database = ARGV[2], ARGV[3]
local fair_wait, redisson_wait = string.match(ARGV[1], '^(%d+),(%d+)$')
fair_wait, redisson_wait = tonumber(fair_wait), tonumber(redisson_wait)

-- A grant names at most this many waiters of the new holder's client directly behind the holder.
local FOLLOWERS = 16

local function client(id)
    return string.sub(id, 1, 36)
end

local function number(id)
    return string.sub(id, 38)
end

-- Ends the script with a refusal if the user may not run this command.
local function require_right(...)
    if not redis.acl_check_cmd(...) then
        error({err = 'NOPERM the user may not run ' .. string.upper((...)) .. ' here'})
    end
end

-- Sends a waiter a message that tells it to send its request again.
local function send_ask(id)
    if is_ours(id) then
        redis.call('publish', own_channel(id), 'ask ' .. number(id) .. ' ' .. lock)
    else
        redis.call('publish', channels .. id, '0')
    end
end

-- Raises the lease. The function never shortens the lease, because a copy of a request must not
-- undo an extension. The function always writes: see lock/acquire.lua.
local function raise(left, lease)
    redis.call('pexpire', lock, left < tonumber(lease) and lease or left)
end

-- Takes the free lock. If the server refuses the lease (as too long), the function undoes the HSET:
-- a lock must not stay without a time to live.
local function take(owner, lease)
    require_right('pexpire', lock, '')
    redis.call('hset', lock, owner, 1)
    local reply = redis.pcall('pexpire', lock, lease)
    if refused(reply) then
        redis.call('hdel', lock, owner)
        error(reply)
    end
end

-- Takes the free lock as `take` does, for an owner that has no waiter ahead. A server that is out
-- of memory must refuse this. So the first write is a ZADD: after an accepted first write, the
-- server would not refuse the HSET.
local function take_anew(owner, lease)
    redis.call('zadd', timeouts, 'xx', 0, '')
    take(owner, lease)
end

-- Fails if the user may not run the commands of `hand_on`. A script that grants the lock to waiters
-- calls this before its first change.
local function require_hand_on_rights()
    now()
    require_right('zscore', timeouts, '')
    require_right('zrem', timeouts, '')
    require_right('ltrim', queue, '', '')
    require_right('hset', lock, '', '')
    require_right('pubsub', 'numsub', '')
    require_right('publish', own_channel(''), '')
end

-- Returns the first entries of the queue, for `hand_on`.
local function first_entries()
    local entries = redis.call('lrange', queue, 0, FOLLOWERS)
    if entries[1] then
        require_hand_on_rights()
    end
    return entries
end

local function remove_head(head)
    redis.call('zrem', timeouts, head)
    redis.call('ltrim', queue, 1, -1)
end

-- Makes the head of the queue the holder of the free lock. (A server that is out of memory refuses
-- the HSET, unless the script has written before.)
local function make_holder(head, lease)
    take(head, lease)
    remove_head(head)
end

-- Removes a waiter from the list and the set. Returns how many entries the waiter had.
local function remove(id)
    redis.call('zrem', timeouts, '')
    return redis.call('lrem', queue, 1, id) + redis.call('zrem', timeouts, id)
end

-- Returns the numbers of the waiters directly behind `id` that belong to the same client, or '-'.
-- These waiters may get the hold from `id` without a message from the server. In `entries`, the
-- waiters behind `id` begin at the index `first`.
local function followers(id, entries, first)
    local numbers = {}
    for i = first, math.min(#entries, first + FOLLOWERS - 1) do
        if client(entries[i]) ~= client(id) then
            break
        end
        numbers[#numbers + 1] = number(entries[i])
    end
    return numbers[1] and table.concat(numbers, ',') or '-'
end

-- Finds the next owner of the free lock, and drops dead waiters. A redlatch waiter is taken as dead
-- if its process does not listen, unless acquire.lua has flagged the waiter's score. (A flagged
-- waiter sends a request as soon as its process listens, and the reply then says that it is the
-- owner.) A live redlatch waiter becomes the owner and gets a message. `askers`: the waiters that
-- send this request and will read the reply. `alive`: waiters that live, whether they listen or
-- not. `entries`: the result of `first_entries`. Returns the first waiter, whether this waiter
-- holds the lock now, and whether a waiter was dropped. If the first waiter does not hold the lock,
-- it keeps its entry: it is in `askers` or `alive`, or is Redisson's. (The number that PUBLISH
-- returns includes pattern subscriptions of other clients, so it does not show whether a process is
-- alive.)
local function hand_on(askers, alive, entries)
    local dropped = false
    entries = entries or first_entries()
    while true do
        local head = entries[1]
        if not head then
            return nil, false, dropped
        end
        local score = redis.call('zscore', timeouts, head)
        if askers and askers[head] then
            return head, false, dropped
        end
        local is_alive = score and tonumber(score) > now()
        if is_alive and is_ours(head) then
            is_alive = redis.call('pubsub', 'numsub', own_channel(head))[2] ~= 0 or score % 1 ~= 0
            if not is_alive and alive and alive[head] then
                return head, false, dropped
            end
        end
        if is_alive and not is_ours(head) then
            return head, false, dropped
        elseif is_alive then
            make_holder(head, PROVISIONAL)
            -- The lock's name is appended, because string.format would cut the name at a zero byte.
            redis.call('publish', own_channel(head), string.format('grant %s %.0f %d %s %s ',
                number(head), now(), PROVISIONAL, followers(head, entries, 2), database) .. lock)
            return head, true, dropped
        end
        remove_head(head)
        entries, dropped = redis.call('lrange', queue, 0, FOLLOWERS), true
    end
end

-- Hands on a lock that has become free. Returns 1: the lock has a new owner; 0: there is no waiter,
-- or the first waiter got a message; 5: the server refused that message. If `hand_on` fails, the
-- lock remains free.
local function try_hand_on(entries)
    local succeeded, head, granted = pcall(hand_on, nil, nil, entries)
    local message_sent = not succeeded or not head or granted or pcall(send_ask, head)
    return succeeded and granted and 1 or message_sent and 0 or 5
end

