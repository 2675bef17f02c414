-- Comes before ../prelude.lua in release.lua: frees a lock that has no waiters, or grants the lock
-- to the first owner in the queue that listens. (If redlatch's clients have passed the lock to each
-- other for longer than MIN_CHAIN_AGE of ../hand_off.lua, and a Redisson client listens, the rest
-- of the script releases the lock.)
--
-- The rest of the script would do the same, but creating its functions takes longer, as in
-- free.lua. (The grant message consists of strings as far as possible, because Lua takes as long to
-- convert a number as to run a command.)
--
-- One HDEL checks the owner and ends its hold, because a lock has one field. LLEN has shown that
-- the queue is a list. The script checks only the right to send the grant message, because an owner
-- that did not receive the message would block the other waiters. If the server refuses another
-- command, the lock is free, and the waiters find it free at their next requests.
local redis, KEYS, ARGV = redis, KEYS, ARGV
-- start_or_age: ARGV 3 of release.lua, or 0 if the chain begins now; own_prefix: the beginning of
-- an own channel's name.
local start_or_age = ARGV[3] and ARGV[3] + 0 or 0
local own_prefix = 'redisson_lock__channel:{redlatch:'
local length = redis.call('llen', KEYS[2])
-- The reply (see release.lua), or false if the rest of the script must release the lock.
local reply = 0
local clock = (length > 0 or start_or_age > 0) and redis.call('time')
-- The server's time in ms.
local now = clock and clock[1] .. string.sub('00000' .. clock[2], -6, -4)
if start_or_age <= -10 or start_or_age > 0 and math.abs(now - start_or_age) >= 10 then
    local subscribers = redis.pcall('pubsub', 'numsub', ARGV[2], ARGV[2] .. ':redlatch')
    start_or_age, reply = 0, not subscribers.err and subscribers[2] == subscribers[4] and 3
end
if reply and (length == 0 or redis.acl_check_cmd('publish', own_prefix .. '}', ''))
    and redis.pcall('hdel', KEYS[1], ARGV[1]) == 1 then
    for places = length - 1, 0, -1 do
        local head = redis.pcall('lpop', KEYS[2])
        local channel = type(head) == 'string' and own_prefix .. string.sub(head, 1, 36) .. '}'
        local subscribers = channel and redis.pcall('pubsub', 'numsub', channel)[2]
        if subscribers ~= 0 then
            local token = subscribers and KEYS[4] and redis.pcall('incrby', KEYS[4], '1024')
            local may_grant = subscribers
                and (not token or type(token) == 'number' and token >= 1024 and token < 2^53)
            if not may_grant and type(token) == 'number' and token < 1024 then
                -- Undo the INCRBY, as in free.lua.
                redis.pcall('incrby', KEYS[4], '-1024')
            end
            if not may_grant or redis.pcall('hset', KEYS[1], head, '1') ~= 1 then
                break
            elseif redis.pcall('pexpire', KEYS[1], '2000') == 1 then
                redis.call('publish', channel, 'grant ' .. string.sub(head, 38) .. ' ' .. now
                    .. ' 2000 lock,' .. (places > 0 and places or '0') .. ','
                    .. (start_or_age > 0 and ARGV[3] or now) .. ','
                    .. (start_or_age > 0 and ARGV[4] or '1')
                    .. (token and string.format(',%.0f', token) or '') .. ' ' .. (ARGV[5] or '0')
                    .. ' ' .. KEYS[1])
                return 1
            end
            redis.call('hdel', KEYS[1], head)
            break
        end
    end
    return type(redis.pcall('publish', ARGV[2], '0')) == 'table' and 5 or reply
end

