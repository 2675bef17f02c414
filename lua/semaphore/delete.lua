-- Removes a semaphore. As in Redisson, the script sends no message, because the
-- waiters could take no permit.
--
-- KEYS 1 the semaphore, 2 record, 3 its mark
-- ARGV 1-4 as in once.lua
-- reply: 1 = the semaphore existed, 0 = there was no semaphore
return once(function()
    return stored(KEYS[1]) and {'1', 'del', KEYS[1], KEYS[3]}
end)
