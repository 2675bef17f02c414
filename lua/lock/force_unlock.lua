-- Ends the hold of any owner. The first waiter gets the lock.
--
-- KEYS see holder.lua
-- ARGV 1 the lock's public channel, 2 number of the database, if it is not 0
-- reply: 1 = there was a hold; 0 = there was none; WRONGTYPE = the key holds no lock
public, database = ARGV[1], ARGV[2] or 0
local held_by, _, type_error = holder()
if type_error then
    return type_error
elseif not held_by then
    grant_next()
    return 0
end
return length() > 0 and denied_grant() or not now()
    or redis.call('del', lock) and hand_on(0, 0, '0', grant_head) and 1
