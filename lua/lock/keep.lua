-- Stands behind ../hand_off.lua and cut.lua: shortens a hold that is kept for a while though no
-- thread has it any more. For a read-write lock, too.
--
-- KEYS see ../hand_off.lua
-- ARGV 1 owner, 2 for how long it is kept from now on, in ms, 3 number of the database, if it is
--      not 0
-- reply: nil = not this owner's (any more); 4 = the owner keeps it for no longer than that
--
-- A copy of it never lengthens the lease: by then less is left. The first in line asks again at the
-- new end: the end that it was told comes later.
database = ARGV[3] or 0
local owner, rest = ARGV[1], tonumber(ARGV[2])
local held = redis.pcall('hexists', lock, owner)
if refused(held) and not string.find(held.err, 'WRONGTYPE') then
    return held
end
-- Also if nothing changes: see `ensure_master`.
ensure_master()
if held ~= 1 then
    return false
end
local size, timeout = redis.call('hlen', lock), timeout_of(lock, owner, 1)
if size > 1 and redis.call('pttl', timeout) > rest then
    redis.call('pexpire', timeout, rest)
end
-- If too many read to look at all of them, the next one that leaves shortens the lock.
local MANY = 64
local left = size <= MANY and cut(lock, owner, rest)
if left then
    pcall(announce, left)
end
return 4
