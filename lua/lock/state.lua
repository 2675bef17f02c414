-- Says how long a lock is held still.
--
-- KEYS 1 the lock
-- reply: its time to live in ms; nil = nobody has it; WRONGTYPE = what is there is no lock
--
-- It changes nothing.
local who, left, foreign = holder()
return foreign or who and left or nil
