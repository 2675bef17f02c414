-- Stands before queue.lua in acquire.lua and try.lua: takes a free lock that nobody waits for.
--
-- The rest would do the same. But to make its functions costs a run as much as these commands. (It
-- would also find the right to TIME missing: better now than when somebody waits.)
if redis.acl_check_cmd and redis.acl_check_cmd('pexpire', KEYS[1], ARGV[3])
    and redis.acl_check_cmd('time') and redis.pcall('exists', unpack(KEYS, 1, 3)) == 0 then
    local token = KEYS[4] and redis.pcall('incrby', KEYS[4], 1024)
    if (not token or type(token) == 'number' and token < 2^53)
        and redis.pcall('hset', KEYS[1], ARGV[4], 1) == 1 then
        redis.call('pexpire', KEYS[1], ARGV[3])
        return token and {0, token} or 0
    end
end

