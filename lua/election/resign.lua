-- Removes the record of a leader that is about to release the lock.
--
-- KEYS 1 the leader
-- ARGV 1 owner, 2 token, 3 channel
-- reply: 1 = done, 0 = another owner leads, or nobody
if redis.call('hget', KEYS[1], 'owner') ~= ARGV[1]
    or redis.call('hget', KEYS[1], 'token') ~= ARGV[2]
then
    return 0
end
redis.call('del', KEYS[1])
redis.pcall('publish', ARGV[3], '0')
return 1
