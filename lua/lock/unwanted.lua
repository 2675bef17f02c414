-- Prepended to ../hand_off.lua in release.lua: frees a lock that has no waiters in its queue, and
-- no Redisson waiters on the public channel. (The script looks for Redisson waiters only if the
-- chain is older than AGE of ../hand_off.lua.)
--
-- The rest of the script would do the same, but creating its functions costs as much as these
-- commands. (If ARGV 3 is above 0, the lock was granted to this owner by a message, so there are
-- probably more waiters. In that case hand_over.lua releases the lock.)
--
-- One HDEL checks the owner and ends its hold, because a lock has one field. If the server refuses
-- the message, the lock is free nevertheless.
local redis, KEYS, ARGV = redis, KEYS, ARGV
-- The reply (see release.lua), or nil if the rest of the script must release the lock.
local told = 0
if ARGV[3] then
    local since = tonumber(ARGV[3])
    if since > 0 then
        told = nil
    elseif since <= -10 then
        local heard = redis.call('pubsub', 'numsub', ARGV[2], ARGV[2] .. ':redlatch')
        told = heard[2] == heard[4] and 3
    end
end
local length = told and redis.call('llen', KEYS[2])
if length == 0 and redis.pcall('hdel', KEYS[1], ARGV[1]) == 1 then
    return type(redis.pcall('publish', ARGV[2], '0')) == 'table' and 5 or told
end

