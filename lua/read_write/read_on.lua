-- Asks for those who read already whether others may join them: whether nobody waits.
--
-- KEYS see ../hand_off.lua
-- ARGV as of acquire.lua
-- reply: so many wait; nil = it is not this owner's any more
local lease, owner = ARGV[1], ARGV[2]
database = ARGV[3] or 0
-- Those who are first may be dead, and so may those who read: then nobody is left who has the lock.
if length() > 0 then
    look()
end
if redis.call('hexists', lock, owner) == 0 then
    ensure_master()
    return nil
end
local waiting = length()
-- Of who may not join nobody's lease is made longer: those who wait would wait for that.
return waiting == 0 and raise_hold(owner, lease) or waiting
