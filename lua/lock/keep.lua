-- Appended to ../hand_off.lua and cut.lua: shortens the lease of a kept hold, which no thread has.
-- Read-write locks use this script, too.
--
-- KEYS see ../hand_off.lua
-- ARGV 1 owner, 2 the time for which the hold is still kept, in ms, 3 number of the database, if it
--      is not 0
-- reply: nil = this owner does not have the lock; 4 = the owner keeps the lock for at most that
--        time
--
-- The script only shortens the lease, so the request may be sent again. The script sends the first
-- waiter a message to ask at the new end of the lease.
database = ARGV[3] or 0
local owner, keep_for = ARGV[1], tonumber(ARGV[2])
local held = redis.pcall('hexists', lock, owner)
if refused(held) and not string.find(held.err, 'WRONGTYPE') then
    return held
end
-- The script always writes: see `ensure_master`.
ensure_master()
if held ~= 1 then
    return false
end
local size, timeout = redis.call('hlen', lock), timeout_of(lock, owner, 1)
if size > 1 and redis.call('pttl', timeout) > keep_for then
    redis.call('pexpire', timeout, keep_for)
end
-- If there are more readers than this, the script does not read their timeouts, which would take
-- too long. The next reader that leaves then shortens the lock's time to live.
local MANY = 64
local left = size <= MANY and cut(lock, owner, keep_for)
if left then
    pcall(announce, left)
end
return 4
