-- Returns the present leader.
--
-- KEYS 1 the lock, 2 its leader
-- reply: {ms until the lock's lease ends, below 0: nobody has the lock; {token, who, host, time at
--        which it became the leader in ms since 1970, its own value or nil} if the lock's owner is
--        the recorded leader, otherwise {}}
local left = redis.call('pttl', KEYS[1])
local record = redis.call('hmget', KEYS[2], 'owner', 'token', 'who', 'host', 'since', 'value')
if record[1] and redis.call('hexists', KEYS[1], record[1]) == 1 then
    return {left, {unpack(record, 2)}}
end
return {left, {}}
