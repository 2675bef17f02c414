-- Releases a fair lock of any holder, and grants it to the first waiter.
--
-- KEYS and ARGV 1 to 3: queue.lua
-- reply: 1 = there was a lock, 0 = there was none
--
-- Even if the lock is already free, the script hands it on: the end of a lease or a deleted key
-- sends no message to waiters.
local _, _, type_error = holder()
if type_error then
    return type_error
end
local entries = first_entries()
local existed = redis.call('del', lock)
try_hand_on(entries)
return existed
