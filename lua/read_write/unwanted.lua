-- Stands before ../hand_off.lua in release.lua: sets a lock free that one alone holds and nobody waits
-- for, while it is too early to ask for others (AGE of ../hand_off.lua). As ../lock/unwanted.lua.
--
-- Not by one HDEL: of a lock that others hold, too, it would take the mode.
local redis, KEYS, ARGV = redis, KEYS, ARGV
local since = tonumber(ARGV[3] or 0)
if since <= 0 and since > -10 and redis.pcall('exists', KEYS[2]) == 0
    and redis.pcall('hexists', KEYS[1], ARGV[1]) == 1 and redis.pcall('hlen', KEYS[1]) == 2 then
    redis.call('del', KEYS[1])
    local message = '1'
    if string.sub(ARGV[1], -6) ~= ':write' then
        local prefix = string.find(KEYS[1], '{', 1, true) and KEYS[1] or '{' .. KEYS[1] .. '}'
        redis.pcall('del', prefix .. ':' .. ARGV[1] .. ':rwlock_timeout:1')
        message = '0'
    end
    return type(redis.pcall('publish', ARGV[2], message)) == 'number' and 0 or -1
end

