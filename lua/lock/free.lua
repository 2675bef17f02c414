-- Stands before queue.lua in acquire.lua and try.lua: takes a free lock that nobody waits for.
--
-- The rest would do the same. But to make its functions costs a run as much as these commands. (It
-- would also find the right to TIME missing: better now than when somebody waits.)
if redis.acl_check_cmd and redis.acl_check_cmd('pexpire', KEYS[1], ARGV[3])
    and redis.acl_check_cmd('time') and redis.pcall('exists', unpack(KEYS)) == 0
    and redis.pcall('hset', KEYS[1], ARGV[4], 1) == 1 then
    redis.call('pexpire', KEYS[1], ARGV[3])
    return 0
end

