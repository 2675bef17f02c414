-- Returns the number of waiters. If there are none, other readers may join the present readers, and
-- the script extends the owner's lease.
--
-- KEYS see ../hand_off.lua
-- ARGV see acquire.lua
-- reply: the number of waiters; nil = this owner does not have the lock
local lease, owner = ARGV[1], ARGV[2]
database = ARGV[3] or 0
-- The first waiter may be dead, or all readers may be dead: `grant_next` removes dead waiters and
-- grants the lock to the next waiters.
if length() > 0 then
    grant_next()
end
if redis.call('hexists', lock, owner) == 0 then
    ensure_master()
    return nil
end
local waiter_count = length()
-- If there are waiters, the lease is not extended: the waiters might have to wait until it ends.
return waiter_count == 0 and raise_hold(owner, lease) or waiter_count
