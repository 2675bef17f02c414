-- Prepended to ../hand_off.lua in release.lua: frees a lock that has one holder and no waiters,
-- while the chain is younger than MIN_CHAIN_AGE (../hand_off.lua). (For plain locks,
-- ../lock/hand_over.lua does the same.)
--
-- Unlike in ../lock/hand_over.lua, one HDEL cannot check the owner and free the lock: the hash also
-- has the mode, and may have other holders.
local redis, KEYS, ARGV = redis, KEYS, ARGV
local start_or_age = tonumber(ARGV[3] or 0)
if start_or_age <= 0 and start_or_age > -10 and redis.call('llen', KEYS[2]) == 0
    and redis.pcall('hexists', KEYS[1], ARGV[1]) == 1 and redis.pcall('hlen', KEYS[1]) == 2 then
    local message, timeout = '1', KEYS[1]
    if string.sub(ARGV[1], -6) ~= ':write' then
        local prefix = string.find(KEYS[1], '{', 1, true) and KEYS[1] or '{' .. KEYS[1] .. '}'
        message, timeout = '0', prefix .. ':' .. ARGV[1] .. ':rwlock_timeout:1'
    end
    redis.call('del', KEYS[1], timeout)
    return type(redis.pcall('publish', ARGV[2], message)) == 'table' and 5 or 0
end

