-- Returns the remaining lease of a permit.
--
-- KEYS 1 the semaphore's permits with the ends of their leases
-- ARGV 1 id
-- reply: ms; -1: the lease has no end; -2: no such permit, or its lease has ended
local ends = redis.call('zscore', KEYS[1], ARGV[1])
return not is_ahead(ends) and -2 or tonumber(ends) == 922337203685477 and -1 or tonumber(ends) - now
