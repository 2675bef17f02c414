-- Records the owner that has the lock as the leader.
--
-- KEYS 1 the lock, 2 its leader
-- ARGV 1 owner, 2 token, 3 who, 4 host, 5 channel, 6 the leader's own value, if it has one
-- reply: 1 = done, 0 = this owner does not have the lock
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
    return 0
end
-- (If the hold was passed to another thread of the process, the same owner leads with a new token.)
if redis.call('hget', KEYS[2], 'owner') ~= ARGV[1]
    or redis.call('hget', KEYS[2], 'token') ~= ARGV[2]
then
    local time = redis.call('time')
    -- The owner already has the lock, so it must lead even if the server is out of memory. After a
    -- DEL, such a server refuses no command of the script. (The record that the DEL removes is out
    -- of date.)
    redis.call('del', KEYS[2])
    redis.call('hset', KEYS[2], 'owner', ARGV[1], 'token', ARGV[2], 'who', ARGV[3], 'host', ARGV[4],
        'since', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
    if ARGV[6] then
        redis.call('hset', KEYS[2], 'value', ARGV[6])
    end
end
-- If the server refuses the message, each observer finds the new leader when it next runs
-- state.lua.
redis.pcall('publish', ARGV[5], '1')
return 1
