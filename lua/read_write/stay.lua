-- Asks for those who read already whether others may join them: whether nobody waits.
--
-- KEYS, ARGV 1 and 2 see ../hand_off.lua
-- ARGV 3 lease in ms, 4 owner
-- reply: so many wait; nil = it is not this owner's any more
local lease, owner = ARGV[3], ARGV[4]
if redis.call('hexists', lock, owner) == 0 then
    return nil
end
raise(timeout(owner, 1), lease)
raise(lock, lease)
-- Those who are first may be dead.
if length() > 0 then
    look()
end
return length()
