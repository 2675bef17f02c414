-- Returns how long a lock is still held.
--
-- KEYS 1 the lock
-- reply: its time to live in ms; nil = not held; WRONGTYPE = the key holds no lock
--
-- The script changes nothing.
local who, left, foreign = holder()
return foreign or who and left or nil
