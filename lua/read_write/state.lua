-- Returns the mode and the time to live of a read-write lock.
--
-- KEYS 1 the lock
-- reply: {1 = to write, 0 = to read, its time to live in ms}; nil = not held; WRONGTYPE = the key
--        holds no read-write lock
--
-- The script changes nothing.
local mode, left, type_error = mode_of()
return type_error or mode and {mode == 'write' and 1 or 0, left} or nil
