-- Releases a fair lock of any holder, and grants it to the first waiter.
--
-- KEYS and ARGV 1 to 3: queue.lua
-- reply: 1 = there was a lock, 0 = there was none
--
-- Even if the lock is already free, the script hands it on: the end of a lease or a deleted key
-- sends no message to waiters.
local _, _, foreign = holder()
if foreign then
    return foreign
end
local line = front()
local existed = redis.call('del', lock)
move_on(line)
return existed
