-- Returns how long a lock is still held.
--
-- KEYS 1 the lock
-- reply: its time to live in ms; nil = not held; WRONGTYPE = the key holds no lock
--
-- The script changes nothing.
local held_by, left, type_error = holder()
return type_error or held_by and left or nil
