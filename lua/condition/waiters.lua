-- Stands before every script of a condition, behind ../prelude.lua: the waiters, the notified ones,
-- and how a waiter is notified.
--
-- KEYS 1 the waiters, 2 the notified ones, 3 the lock (where a script needs it)
-- ARGV 1 number of the database; a script's own come after
--
-- The waiters are a list, one entry for each thread, the first to come first. Gone is notified: a
-- waiter sleeps only while its entry is in the list. So if a notification, a look that takes its
-- process for dead, or the loss of the key takes an entry out, no wake-up is lost: a living waiter
-- finds out by its next look at the latest. The notified waiters are a hash: waiter -> the time,
-- and the number of the notification. A record stays until the waiter has left the lock that it
-- came back with. If the waiter dies before, the notification is passed on. The field without a
-- name has the time of the last look at all records, if they are many.
local waiting, notified, lock = KEYS[1], KEYS[2], KEYS[3]
local database = ARGV[1]

-- All in ms. How long the keys outlive the last request, and how long a record counts without a
-- sign of life.
local KEPT, PATIENCE = 60000, 2000

-- Whether a waiter's process lives, as far as the server can know: asked once for each process.
-- PUBLISH would count another client's pattern subscription.
local heard_by = {}
local function listens(waiter)
    local own = own_channel(waiter)
    if heard_by[own] == nil then
        local heard = redis.pcall('pubsub', 'numsub', own)
        heard_by[own] = refused(heard) and true or heard[2] > 0
    end
    return heard_by[own]
end

-- A refused message does no harm: the waiter looks.
local function tell(waiter)
    redis.pcall('publish', own_channel(waiter),
        table.concat({'notify', string.sub(waiter, 38), database, waiting}, ' '))
end

-- Whether `owner` has the lock. Other data written over the lock is not its either.
local function is_held_by(owner)
    local held = redis.pcall('hexists', lock, owner)
    if refused(held) and not string.find(held.err, 'WRONGTYPE') then
        return held
    end
    return held == 1
end

-- Records a notified waiter: nil, or the refusal and nothing done. (PEXPIRE first: if it is refused
-- after HSET, the record would stay for ever.)
local function record(waiter, number)
    local exists = redis.pcall('pexpire', notified, KEPT)
    if refused(exists) then
        return exists
    end
    local set = redis.pcall('hset', notified, waiter, string.format('%.0f %s', now(), number))
    if refused(set) then
        return set
    end
    if exists == 0 then
        redis.call('pexpire', notified, KEPT)
    end
end

-- Notifies the first waiter that listens, and returns it, or nil; the second: the refusal, and none
-- was notified. The record comes before the end of the wait: an entry taken out without a record
-- would be a lost notification.
local function notify_first(number)
    while true do
        local first = redis.call('lindex', waiting, 0)
        if not first then
            return nil
        end
        local lives = listens(first)
        local trouble = lives and record(first, number)
        if trouble then
            return nil, trouble
        end
        local gone = redis.pcall('lpop', waiting)
        if refused(gone) then
            redis.pcall('hdel', notified, first)
            return nil, gone
        end
        if lives then
            tell(first)
            return first
        end
    end
end

