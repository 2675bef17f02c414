-- Says whether other readers may join the present ones, that is, whether there are no waiters.
--
-- KEYS see ../hand_off.lua
-- ARGV as of acquire.lua
-- reply: the number of waiters; nil = this owner does not have the lock
local lease, owner = ARGV[1], ARGV[2]
database = ARGV[3] or 0
-- The first in line may be dead, and so may the readers: then the lock has no living holder.
if length() > 0 then
    look()
end
if redis.call('hexists', lock, owner) == 0 then
    ensure_master()
    return nil
end
local waiting = length()
-- If no reader may join, the lease is not extended, since the waiters would have to wait for its
-- end.
return waiting == 0 and raise_hold(owner, lease) or waiting
