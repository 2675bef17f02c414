-- Returns how long a permit's lease lasts without a renewal.
--
-- KEYS 1 when the leases of the semaphore's permits end
-- ARGV 1 id
-- reply: ms; -1: it has no end; -2: no such permit, or its lease has ended
local ends = redis.call('zscore', KEYS[1], ARGV[1])
return not is_ahead(ends) and -2 or tonumber(ends) == 922337203685477 and -1 or tonumber(ends) - now
