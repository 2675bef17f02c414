-- Ends the hold of whoever has the lock. The first in the queue is next.
--
-- KEYS see queue.lua
-- ARGV 1 the lock's public channel, 2 number of the database, if it is not 0
-- reply: 1 = there was one; 0 = there was none; WRONGTYPE = what is there is no lock, and is left
public, database = ARGV[1], ARGV[2] or 0
local who, _, foreign = holder()
if foreign then
    return foreign
elseif not who then
    look()
    return 0
end
redis.call('del', lock)
if not grant_head(now(), 1) then
    publish(0)
end
return 1
