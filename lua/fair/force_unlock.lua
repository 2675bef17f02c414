-- Deletes a fair lock, whoever holds it, and tells the first in line.
--
-- KEYS and ARGV 1, 2: line.lua
-- reply: 1 = there was a lock, 0 = there was none
--
-- The first in line is told either way: a lock that lapsed or was deleted told nobody. What cannot
-- be found out about the line keeps nobody from unlocking.
local _, _, foreign = holder()
if foreign then
    return foreign
end
local existed = redis.call('del', lock)
pcall(function()
    local head = living_head()
    if head then
        tell(head)
    end
end)
return existed
