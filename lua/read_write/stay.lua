-- Asks for those who read already whether others may join them: whether nobody waits.
--
-- KEYS see ../hand_off.lua
-- ARGV as of acquire.lua
-- reply: so many wait; nil = it is not this owner's any more
local lease, owner = ARGV[1], ARGV[2]
database = ARGV[3] or 0
if redis.call('hexists', lock, owner) == 0 then
    ensure_master()
    look()
    return nil
end
raise(timeout(owner, 1), lease)
raise(lock, lease)
-- Those who are first may be dead.
if length() > 0 then
    look()
end
return length()
