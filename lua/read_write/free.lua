-- Prepended to ../hand_off.lua in acquire.lua and try.lua: takes a free lock without waiters.
--
-- The rest of the script would do the same, but creating its functions costs as much as these
-- commands. (`is_allowed` below checks the right to TIME, although only a lock with waiters needs
-- it. So a missing right is reported even if there are no waiters.)
local redis, KEYS, ARGV, is_allowed = redis, KEYS, ARGV, redis.acl_check_cmd
if redis.pcall('exists', KEYS[1], KEYS[2], KEYS[3]) == 0
    and is_allowed('pexpire', KEYS[1], ARGV[1]) and is_allowed('time') then
    local mode, ready = 'write', true
    if string.sub(ARGV[2], -6) ~= ':write' then
        local prefix = string.find(KEYS[1], '{', 1, true) and KEYS[1] or '{' .. KEYS[1] .. '}'
        local timeout = prefix .. ':' .. ARGV[2] .. ':rwlock_timeout:1'
        mode, ready = 'read', not redis.pcall('set', timeout, '1', 'px', ARGV[1]).err
    end
    if ready and redis.pcall('hset', KEYS[1], 'mode', mode, ARGV[2], '1') == 2 then
        redis.call('pexpire', KEYS[1], ARGV[1])
        return 0
    end
end

