-- Appended to unwanted.lua in release.lua: while the chain is younger than AGE (../hand_off.lua),
-- grants a lock without tokens to the first owner in the queue that listens, or frees the lock.
--
-- The rest of the script would do the same, but creating its functions takes longer, as in
-- free.lua.
--
-- One HDEL checks the owner and ends its hold, because a lock has one field. LLEN has shown that
-- the queue is a list. The script checks only the right to send the grant message: an owner that
-- did not receive the message would block the other waiters. If the server refuses another command,
-- the lock is free, and the waiters find it free when they ask.
local redis, KEYS, ARGV, may = redis, KEYS, ARGV, redis.acl_check_cmd
-- since: when the chain began (ARGV 3 of release.lua); own: the beginning of an own channel's name.
local since, own = tonumber(ARGV[3] or 0), 'redisson_lock__channel:{redlatch:'
if since >= 0 and not KEYS[4] then
    length = length or redis.call('llen', KEYS[2])
    local clock = redis.call('time')
    local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
    if (since == 0 or math.abs(now - since) < 10)
        and may('publish', own .. '}', '')
        and redis.pcall('hdel', KEYS[1], ARGV[1]) == 1 then
        for places = length - 1, 0, -1 do
            local head = redis.pcall('lpop', KEYS[2])
            local channel = type(head) == 'string' and own .. string.sub(head, 1, 36) .. '}'
            local heard = channel and redis.pcall('pubsub', 'numsub', channel)[2]
            if heard ~= 0 then
                if not heard or redis.pcall('hset', KEYS[1], head, '1') ~= 1 then
                    break
                elseif redis.pcall('pexpire', KEYS[1], '2000') == 1 then
                    redis.call('publish', channel, 'grant ' .. string.sub(head, 38) .. ' ' .. now
                        .. ' 2000 lock,' .. places .. ',' .. (since > 0 and since or now) .. ','
                        .. (ARGV[4] or 0) + 1 .. ' ' .. (ARGV[5] or 0) .. ' ' .. KEYS[1])
                    return 1
                end
                redis.call('hdel', KEYS[1], head)
                break
            end
        end
        return type(redis.pcall('publish', ARGV[2], '0')) == 'table' and 5 or 0
    end
end

