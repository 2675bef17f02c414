-- Asks for the count, for a thread that waits if the latch is not open.
--
-- KEYS 1 the latch
-- ARGV 1 the client's control channel, 2 fence
-- reply: the count, or 2^53 for any above; below 1 = open
--
-- The fence comes back on the connection that the latch's messages come on. A `0` behind it, on the
-- channel of this very latch, was sent after the count was read here, and opens the latch without
-- another question. One before it may be of the time before the latch was set anew. Redisson's
-- channel does not tell the databases of a server apart: a `0` there is only a hint.
local count = stored(KEYS[1]) or 0
if count > 0 then
    tell(ARGV[1], ARGV[2])
end
-- A larger one is no number as a reply of Lua's: 2^63 - 1 becomes a negative one, which is open.
return math.min(count, 2 ^ 53)
