-- Stands before each script of a fair lock, behind ../prelude.lua: the line of waiters, and how the
-- lock goes to the first of them.
--
-- KEYS 1 the lock, 2 the queue, 3 the timeouts
-- ARGV 1 fair wait, a comma, and the time that a waiter of Redisson's adds to the scores behind it
--      (its fairLockWaitTimeout), in ms; 2 prefix of the channels of Redisson's waiters, 3 number
--      of the database; the script's own follow
--
-- One invariant: if the lock is free when a script of ours ends, the queue is empty, or its head is
-- a client of Redisson's that got a message or asks by itself. So the line moves without a
-- newcomer.
--
-- If the server refuses a command (access rights, memory), it does so before anything has changed:
-- a command that could fail after a change is tried before, in a form that changes nothing. (Each
-- function costs a run of the script a twelfth of a microsecond, so the functions that are seldom
-- needed are made where they are used.)
local lock, queue, timeouts = KEYS[1], KEYS[2], KEYS[3]
local channels, database = ARGV[2], ARGV[3]
local fair_wait, redisson_wait = string.match(ARGV[1], '^(%d+),(%d+)$')
fair_wait, redisson_wait = tonumber(fair_wait), tonumber(redisson_wait)

-- A grant names at most this many waiters of the same client that stand directly behind the holder.
local FOLLOWERS = 16

local function client(id)
    return string.sub(id, 1, 36)
end

local function number(id)
    return string.sub(id, 38)
end

-- Ends the script with a refusal if the user may not run this command.
local function permit(...)
    if not redis.acl_check_cmd(...) then
        error({err = 'NOPERM the user may not run ' .. string.upper((...)) .. ' here'})
    end
end

-- Asks a waiter to send its request.
local function tell(id)
    if is_ours(id) then
        redis.call('publish', own_channel(id), 'ask ' .. number(id) .. ' ' .. lock)
    else
        redis.call('publish', channels .. id, '0')
    end
end

-- Raises the lease. A late copy does not shorten a lease that was extended since. It always writes:
-- see lock/acquire.lua.
local function raise(left, lease)
    redis.call('pexpire', lock, left < tonumber(lease) and lease or left)
end

-- Takes the free lock, which never stays without an end: if the lease is refused (as too long), the
-- HSET is undone.
local function take(owner, lease)
    permit('pexpire', lock, '')
    redis.call('hset', lock, owner, 1)
    local ends = redis.pcall('pexpire', lock, lease)
    if refused(ends) then
        redis.call('hdel', lock, owner)
        error(ends)
    end
end

-- As `take`, for an owner that no waiter precedes. The command that needs memory comes first: after
-- a command that writes, the server refuses no command for lack of memory.
local function take_anew(owner, lease)
    redis.call('zadd', timeouts, 'xx', 0, '')
    take(owner, lease)
end

-- Fails if the user may not move the line. A script that takes waiters out of the queue and grants
-- them the lock calls this before its first change.
local function may_hand_on()
    now()
    permit('zscore', timeouts, '')
    permit('zrem', timeouts, '')
    permit('ltrim', queue, '', '')
    permit('hset', lock, '', '')
    permit('pubsub', 'numsub', '')
    permit('publish', own_channel(''), '')
end

-- The first in line, to which the script may have to hand on the lock.
local function front()
    local line = redis.call('lrange', queue, 0, FOLLOWERS)
    if line[1] then
        may_hand_on()
    end
    return line
end

local function drop(head)
    redis.call('zrem', timeouts, head)
    redis.call('ltrim', queue, 1, -1)
end

-- Makes the head of the queue the holder of the free lock. (Without memory the HSET is refused,
-- unless the script has written before.)
local function seat(head, lease)
    take(head, lease)
    drop(head)
end

-- Removes a waiter, wherever it stands. Returns how many entries it had.
local function leave(id)
    redis.call('zrem', timeouts, '')
    return redis.call('lrem', queue, 1, id) + redis.call('zrem', timeouts, id)
end

-- The numbers of the waiters directly behind `id` that belong to its client, or '-'. They may have
-- the hold after it without a message from the server. `line` is read from the index `first` on.
local function followers(id, line, first)
    local numbers = {}
    for i = first, math.min(#line, first + FOLLOWERS - 1) do
        if client(line[i]) ~= client(id) then
            break
        end
        numbers[#numbers + 1] = number(line[i])
    end
    return numbers[1] and table.concat(numbers, ',') or '-'
end

-- Finds the next owner of the free lock. It drops dead waiters. A waiter of ours whose process does
-- not listen counts as dead, unless it has only just come (acquire.lua): then it asks once it
-- listens, and finds itself the owner. A live waiter of ours becomes the owner, and gets a message.
-- `asks`: waiters that are asking, and will read the reply. `alive`: waiters that live, whether
-- they listen or not. `line`: the reply of `front`. Returns the first in line, whether it holds the
-- lock now, and whether a waiter was dropped. A first waiter that does not hold the lock asks, or
-- is Redisson's, and stays. PUBLISH alone would count another client's pattern subscription, so a
-- dead process would look alive.
local function hand_on(asks, alive, line)
    local dropped = false
    line = line or front()
    while true do
        local head = line[1]
        if not head then
            return nil, false, dropped
        end
        local score = redis.call('zscore', timeouts, head)
        if asks and asks[head] then
            return head, false, dropped
        end
        local lives = score and tonumber(score) > now()
        if lives and is_ours(head) then
            lives = redis.call('pubsub', 'numsub', own_channel(head))[2] ~= 0 or score % 1 ~= 0
            if not lives and alive and alive[head] then
                return head, false, dropped
            end
        end
        if lives and not is_ours(head) then
            return head, false, dropped
        elseif lives then
            seat(head, PROVISIONAL)
            -- Lua's format would end the name at a zero byte.
            redis.call('publish', own_channel(head), string.format('grant %s %.0f %d %s %s ',
                number(head), now(), PROVISIONAL, followers(head, line, 2), database) .. lock)
            return head, true, dropped
        end
        drop(head)
        line, dropped = redis.call('lrange', queue, 0, FOLLOWERS), true
    end
end

-- Moves the line of a lock that has become free. Returns 1: the lock has its next owner; 0: there
-- is no waiter, or the first got a message; 5: the server refused that message. If anything is
-- wrong with the queue, the lock stays free.
local function move_on(line)
    local done, head, granted = pcall(hand_on, nil, nil, line)
    local told = not done or not head or granted or pcall(tell, head)
    return done and granted and 1 or told and 0 or 5
end

