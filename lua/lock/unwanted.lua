-- Stands before ../hand_off.lua in release.lua: frees a lock that has no waiters in its queue, and
-- no waiters of Redisson's on the public channel. (It asks for Redisson's waiters only if the chain
-- is older than AGE of ../hand_off.lua.)
--
-- The rest of the script would do the same, but making its functions costs as much as these
-- commands. (If the chain's beginning is a time of the server's clock, there was a waiter a moment
-- ago. Then hand_over.lua does the release.)
--
-- One HDEL checks the owner and ends its hold, since a lock has one field. The message comes after
-- the HDEL: if the message is refused, the lock is free all the same.
local redis, KEYS, ARGV = redis, KEYS, ARGV
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

