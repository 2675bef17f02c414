-- Stands before queue.lua in acquire.lua and try.lua: takes a free lock that nobody waits for.
--
-- The rest would do the same. But to make its functions costs a run as much as these commands.
if redis.acl_check_cmd and redis.acl_check_cmd('pexpire', KEYS[1], ARGV[3])
    and redis.pcall('exists', unpack(KEYS)) == 0 then
    local clock = redis.pcall('time')
    if clock[1] and redis.pcall('hset', KEYS[1], ARGV[4], 1) == 1 then
        redis.call('pexpire', KEYS[1], ARGV[3])
        return {1, 0, clock[1] * 1000 + math.floor(clock[2] / 1000)}
    end
end

