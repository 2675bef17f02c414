-- Stands before ../hand_off.lua in release.lua: sets a lock free that nobody waits for, neither in its
-- queue nor, if it is time to ask (AGE there), in public.
--
-- The rest would do the same. But to make its functions costs a run as much as these commands. (With
-- a chain by the server's clock somebody waited a moment ago: then they do not matter.)
--
-- One HDEL looks whose the lock is and ends it: it has one field. Where it is refused, the rest asks
-- and deletes.
local redis, KEYS, ARGV = redis, KEYS, ARGV
local told = 0
if ARGV[3] then
    local since = tonumber(ARGV[3])
    if since > 0 then
        told = nil
    elseif since <= -10 then
        local heard = redis.pcall('pubsub', 'numsub', ARGV[2], ARGV[2] .. ':redlatch')
        told = heard[2] and heard[2] == heard[4] and 3
    end
end
if told and redis.pcall('exists', KEYS[2]) == 0
    and redis.pcall('hdel', KEYS[1], ARGV[1]) == 1 then
    return type(redis.pcall('publish', ARGV[2], '0')) == 'number' and told or -1
end

