-- Returns how many permits there are. The script changes nothing: permits whose leases have ended
-- count as free. (Redisson's script gives those permits back. This script returns the same numbers
-- and needs fewer rights.)
--
-- KEYS 1 the semaphore, 2 its permits with the ends of their leases
-- reply: {free, as text with all its digits; permits whose leases have ended; taken}
local expired = redis.call('zcount', KEYS[2], '-inf', now)
local free = stored(KEYS[1]) and redis.call('get', KEYS[1]) or '0'
return {free, expired, redis.call('zcard', KEYS[2]) - expired}
