-- Prepended to every script of a condition, after ../prelude.lua: the waiters and the notified
-- waiters. (Each function adds a twelfth of a microsecond to a run, so the functions that only some
-- scripts need are in holder.lua and passing.lua.)
--
-- KEYS 1 the waiters, 2 the notified waiters, 3 the lock (where a script needs it)
-- ARGV 1 number of the database; the arguments of each script follow
--
-- The waiters are a list with one entry for each thread, in the order of arrival. A notification
-- removes an entry. The scripts treat a waiter without an entry as notified. So no wake-up is lost
-- if the key is deleted, or if passing.lua removes the entry of a live process as dead: the waiter
-- finds that its entry is missing when it next runs state.lua.
--
-- The notified waiters are a hash of records: waiter -> the time of its last keep-alive, and the
-- number of the notification. A record exists until the waiter has taken the lock again and
-- released it. If the waiter dies before that, the notification is passed on. If there are many
-- records, the field with the empty name has the time at which state.lua last read all of them.
local waiting, notified = KEYS[1], KEYS[2]

-- In ms. KEYS_TTL: how long the keys exist after the last request. ALIVE_FOR: for how long after
-- its last keep-alive a waiter with a record is taken as alive.
local KEYS_TTL, ALIVE_FOR = 60000, 2000

-- Records a notified waiter. Returns nil, or the server's refusal: in that case nothing has
-- changed. (PEXPIRE comes first: if it were refused after HSET, the record would never expire.)
local function record(waiter, number)
    local exists = redis.pcall('pexpire', notified, KEYS_TTL)
    if refused(exists) then
        return exists
    end
    local set = redis.pcall('hset', notified, waiter, string.format('%.0f %s', now(), number))
    if refused(set) then
        return set
    end
    if exists == 0 then
        redis.call('pexpire', notified, KEYS_TTL)
    end
end

