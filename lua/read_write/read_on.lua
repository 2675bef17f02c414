-- Returns whether other readers may join the present ones, that is, whether there are no waiters.
-- If so, the script extends the owner's lease.
--
-- KEYS see ../hand_off.lua
-- ARGV as of acquire.lua
-- reply: the number of waiters; nil = this owner does not have the lock
local lease, owner = ARGV[1], ARGV[2]
database = ARGV[3] or 0
-- The first in line may be dead, or all readers may be dead: `look` removes dead waiters and grants
-- the lock to the next ones.
if length() > 0 then
    look()
end
if redis.call('hexists', lock, owner) == 0 then
    ensure_master()
    return nil
end
local waiting = length()
-- If no reader may join, the lease is not extended: waiters might have to wait until its end.
return waiting == 0 and raise_hold(owner, lease) or waiting
