-- Returns how many permits there are. It changes nothing: those with ended leases count as free.
-- (Redisson's script takes those back. This one may be sent twice and needs few rights, and its
-- numbers are the same.)
--
-- KEYS 1 the semaphore, 2 when its permits' leases end
-- reply: {free, as text with all its digits; lapsed; taken}
local lapsed = redis.call('zcount', KEYS[2], '-inf', now)
local free = stored(KEYS[1]) and redis.call('get', KEYS[1]) or '0'
return {free, lapsed, redis.call('zcard', KEYS[2]) - lapsed}
