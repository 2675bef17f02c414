-- Grants the lock to the first in its queue, if it is free.
--
-- KEYS, ARGV 1 and 2 see queue.lua
-- reply: 1 = granted; 0 = nothing to do
--
-- Who handed a lock on sends it once when the provisional lease is over: a lease that ends tells
-- nobody.
return look()
