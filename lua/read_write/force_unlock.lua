-- Ends the holds of all readers, or the hold of the writer. The first waiter gets the lock.
--
-- KEYS see ../hand_off.lua
-- ARGV 1 the lock's public channel, 2 `read` or `write`: the kind of hold that the script ends,
--      3 number of the database, if it is not 0
-- reply: 1 = there was such a hold; 0 = there was none; WRONGTYPE = the key holds no read-write
--        lock
--
-- The script does not delete the readers' timeouts: they do no harm, and expire.
public, database = ARGV[1], ARGV[3] or 0
local mode, _, type_error = mode_of()
if type_error then
    return type_error
elseif mode ~= ARGV[2] then
    grant_next()
    return 0
end
return length() > 0 and denied_grant() or not now() or redis.call('del', lock)
    and hand_over(0, 0, mode == 'write' and '1' or '0') and 1
