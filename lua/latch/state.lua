-- Returns whether a latch is open, and when its key expires.
--
-- KEYS 1 the latch
-- reply: {1 = closed, 0 = open; ms until it expires, -1: never, or not known}
local ttl = redis.pcall('pttl', KEYS[1])
local closed = (stored(KEYS[1]) or 0) > 0
return {closed and 1 or 0, closed and type(ttl) == 'number' and ttl or -1}
