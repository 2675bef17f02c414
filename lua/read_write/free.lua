-- Stands before ../hand_off.lua in acquire.lua and try.lua: takes a free lock that nobody waits for.
--
-- The rest would do the same. But to make its functions costs a run as much as these commands. (It
-- would also find the right to TIME missing: better now than when somebody waits.)
if redis.acl_check_cmd and redis.acl_check_cmd('pexpire', KEYS[1], ARGV[3])
    and redis.acl_check_cmd('time') and redis.pcall('exists', unpack(KEYS, 1, 3)) == 0 then
    local mode, ready = 'write', true
    if string.sub(ARGV[4], -6) ~= ':write' then
        local prefix = string.find(KEYS[1], '{', 1, true) and KEYS[1] or '{' .. KEYS[1] .. '}'
        local timeout = prefix .. ':' .. ARGV[4] .. ':rwlock_timeout:1'
        mode, ready = 'read', not redis.pcall('set', timeout, 1, 'px', ARGV[3]).err
    end
    if ready and redis.pcall('hset', KEYS[1], 'mode', mode, ARGV[4], 1) == 2 then
        redis.call('pexpire', KEYS[1], ARGV[3])
        return 0
    end
end

