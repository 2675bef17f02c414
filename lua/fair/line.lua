-- The line before a fair lock, and how the lock goes to the first in it. Stands before each of its
-- scripts.
--
-- KEYS 1 the lock, 2 the queue, 3 the timeouts
-- ARGV 1 fair wait in ms, 2 prefix of the channels of Redisson's waiters, 3 number of the database;
-- the script's own follow
--
-- One invariant: when a script of ours ends, a free lock means an empty queue, or one of Redisson's
-- at its head who has been told or asks by itself. So nobody needs to be the one who must come.
--
-- What the server may refuse (access rights, memory) it refuses before anything has changed: a
-- command that could fail behind a change is tried before it, in a form that changes nothing.
-- (Each function that is made costs a run of the script a twelfth of a microsecond. Those that are
-- seldom needed are made where they are.)
local lock, queue, timeouts = KEYS[1], KEYS[2], KEYS[3]
local fair_wait, channels, database = tonumber(ARGV[1]), ARGV[2], ARGV[3]

-- How long a lock is granted for by message, in ms: its process may be stopped, and must say that
-- it is not before it gets the whole lease.
local PROVISIONAL = 2000
-- So many waiters of its client directly behind are named in a grant.
local FOLLOWERS = 16
-- What a waiter of Redisson's adds to the scores behind it (its fairLockWaitTimeout), in ms.
local REDISSON_WAIT = 300000

local function ours(id)
    return string.sub(id, 15, 15) == '8'
end

local function client(id)
    return string.sub(id, 1, 36)
end

local function number(id)
    return string.sub(id, 38)
end

local time
local function now()
    if not time then
        local clock = redis.call('time')
        time = clock[1] * 1000 + math.floor(clock[2] / 1000)
    end
    return time
end

-- Ends the script with a refusal if the user may not run this command.
local function permit(...)
    if not redis.acl_check_cmd(...) then
        error({err = 'NOPERM the user may not run ' .. string.upper((...)) .. ' here'})
    end
end

-- Where a client of ours is told what concerns its waiters.
local function own_channel(id)
    return 'redisson_lock__channel:{redlatch:' .. client(id) .. '}'
end

-- A waiter should ask. How many heard it; -1: the message was refused.
local function tell(id)
    local heard
    if ours(id) then
        heard = redis.pcall('publish', own_channel(id), 'ask ' .. number(id) .. ' ' .. lock)
    else
        heard = redis.pcall('publish', channels .. id, '0')
    end
    return type(heard) == 'number' and heard or -1
end

-- Who holds the lock, if anybody does, and its time left. A lock has one field, an owner, and an end,
-- always: waiting for another hash would not end, and it is an error.
local function holder()
    -- Two fields are enough to see, and somebody's data may have a million.
    local scan = redis.call('hscan', lock, 0, 'count', 2)
    local owner = scan[2][1]
    if not owner and scan[1] == '0' then
        return nil
    end
    local left = redis.call('pttl', lock)
    if scan[2][3] or scan[1] ~= '0' or left == -1
        or string.match(owner, '^[%x-]+:()%d+$') ~= 38
    then
        return nil, nil, redis.error_reply(
            'WRONGTYPE the hash is no lock: no owner alone, or no time to live')
    end
    return owner, left
end

-- What comes late cuts no lease that was made longer since. It always writes: see lock/acquire.lua.
local function raise(left, lease)
    redis.call('pexpire', lock, left < tonumber(lease) and lease or left)
end

-- Takes the lock, which is free: it never stays without an end. A refused lease (one too long) undoes
-- the HSET.
local function take(owner, lease)
    permit('pexpire', lock, lease)
    redis.call('hset', lock, owner, 1)
    local ends = redis.pcall('pexpire', lock, lease)
    if type(ends) == 'table' then
        redis.call('hdel', lock, owner)
        error(ends)
    end
end

-- The same for one that nobody in the queue has a claim before. What needs memory comes first: after
-- a command that writes, no memory is no reason to refuse any more.
local function take_anew(owner, lease)
    redis.call('zadd', timeouts, 'xx', 0, '')
    take(owner, lease)
end

-- To be called before a change that takes somebody out of the queue.
local function may_leave()
    permit('zrem', timeouts, '')
    permit('ltrim', queue, 0, -1)
end

-- Takes the head off the queue: out of the list and the set, or out of neither.
local function drop(head)
    may_leave()
    redis.call('zrem', timeouts, head)
    redis.call('ltrim', queue, 1, -1)
end

-- The head of the queue becomes the holder of the free lock. (Without memory the HSET is refused,
-- unless the script has written before.)
local function seat(head, lease)
    may_leave()
    take(head, lease)
    redis.call('zrem', timeouts, head)
    redis.call('ltrim', queue, 1, -1)
end

-- Takes a waiter out of the queue, wherever it stands. How many entries it had.
local function leave(id)
    redis.call('zrem', timeouts, '')
    return redis.call('lrem', queue, 1, id) + redis.call('zrem', timeouts, id)
end

-- The numbers of those who stand directly behind `id` and are its client's: they may have the hold
-- after it without a word from the server. They are in `line` from `first` on. '-': nobody.
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

-- Nobody holds the lock: whose turn is it? Whoever is dead is dropped; of ours that is also whose
-- process does not listen. A living one of ours is made the owner, and told so. `asks`: these are
-- asking, and will read the reply. `alive`: these are, whether they listen or not.
-- Returns who is first, whether that one holds the lock now, and whether somebody was dropped. Who is
-- first and does not hold it asks, is Redisson's, or cannot be told (a right is missing), and stays.
-- The message is the last: nobody hears of a grant that is taken back. PUBLISH alone would count
-- somebody's pattern subscription, and a dead process would look alive.
local function hand_on(asks, alive)
    local dropped = false
    while true do
        local line = redis.call('lrange', queue, 0, FOLLOWERS)
        local head = line[1]
        if not head then
            return nil, false, dropped
        end
        local score = redis.call('zscore', timeouts, head)
        if asks and asks[head] then
            return head, false, dropped
        end
        local lives = score and tonumber(score) > now()
        if lives and ours(head) then
            local listening = redis.pcall('pubsub', 'numsub', own_channel(head))
            lives = listening[2] ~= 0
            if not lives and alive and alive[head] then
                return head, false, dropped
            end
        end
        if not lives then
            drop(head)
        elseif not ours(head) then
            return head, false, dropped
        else
            -- Lua's format would end the name at a zero byte.
            local message = string.format('grant %s %.0f %d %s %s ', number(head), now(),
                PROVISIONAL, followers(head, line, 2), database) .. lock
            if not pcall(seat, head, PROVISIONAL) then
                return head, false, dropped
            end
            local heard = redis.pcall('publish', own_channel(head), message)
            if type(heard) == 'number' and heard > 0 then
                return head, true, dropped
            end
            redis.call('hdel', lock, head)
            if type(heard) ~= 'number' then
                redis.call('zadd', timeouts, score, head)
                redis.call('lpush', queue, head)
                return head, false, dropped
            end
        end
        dropped = true
    end
end

-- The lock has become free. 1: it has its next owner; 0: nobody waits, or who is first has been told;
-- -1: that message was refused. Whatever is wrong with the queue, the lock is free.
local function move_on()
    local done, head, granted = pcall(hand_on)
    if granted and done then
        return 1
    end
    return done and head and math.min(tell(head), 0) or 0
end

