-- Deletes a fair lock, whoever holds it. The first in line gets it.
--
-- KEYS and ARGV 1 to 3: line.lua
-- reply: 1 = there was a lock, 0 = there was none
--
-- The script hands the lock on even if there was none: a lock that lapsed or was deleted sent no
-- message.
local _, _, foreign = holder()
if foreign then
    return foreign
end
local line = front()
local existed = redis.call('del', lock)
move_on(line)
return existed
