-- Deletes a lock, whoever holds it, and wakes who waits for it.
--
-- KEYS 1 the lock
-- ARGV 1 channel, 2 message
-- reply: 1 = there was one, 0 = there was none
if redis.call('del', KEYS[1]) == 0 then
    return 0
end
redis.pcall('publish', ARGV[1], ARGV[2])
return 1
