-- Stands before every script of a condition, behind ../prelude.lua: the waiters and the notified
-- waiters. (Each function adds a twelfth of a microsecond to a run. So the functions that only some
-- scripts need are in holder.lua and passing.lua.)
--
-- KEYS 1 the waiters, 2 the notified waiters, 3 the lock (where a script needs it)
-- ARGV 1 number of the database; the arguments of each script follow
--
-- The waiters are a list with one entry for each thread, in the order of arrival. An entry that is
-- gone counts as notified: a waiter sleeps only while its entry is in the list. A notification
-- removes an entry. An entry is also lost with the key, or when look.lua takes the waiter's process
-- for dead. No wake-up is lost by this: a living waiter finds out when it next runs look.lua.
--
-- The notified waiters are a hash: waiter -> the time, and the number of the notification. A record
-- stays until the waiter has taken the lock again and left it. If the waiter dies before that, the
-- notification is passed on. If there are many records, the field with the empty name has the time
-- at which a waiter last read all of them.
local waiting, notified = KEYS[1], KEYS[2]

-- In ms: how long the keys outlive the last request; how long after its last keep-alive a waiter
-- with a record counts as alive.
local KEPT, PATIENCE = 60000, 2000

-- Records a notified waiter. Returns nil, or the server's refusal, after which nothing has changed.
-- (PEXPIRE comes first: if it were refused after HSET, the record would stay for ever.)
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

