-- How many permits there are. It changes nothing: those whose leases have ended count as free.
--
-- KEYS 1 the semaphore, 2 when its permits' leases end
-- reply: {free, out}
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lapsed = redis.call('zcount', KEYS[2], '-inf', now)
return {(stored(KEYS[1]) or 0) + lapsed, redis.call('zcard', KEYS[2]) - lapsed}
