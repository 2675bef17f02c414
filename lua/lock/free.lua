-- Stands before ../hand_off.lua in acquire.lua and try.lua: takes a free lock without waiters.
--
-- The rest would do the same. But to make its functions costs a run as much as these commands. (It
-- would also find the right to TIME missing: better now than when there are waiters. And a number
-- for an argument costs a server as much as a command: it writes it out as one with a fraction. And
-- each look at a name that is not local counts.)
local redis, KEYS, ARGV, may = redis, KEYS, ARGV, redis.acl_check_cmd
if redis.pcall('exists', KEYS[1], KEYS[2], KEYS[3]) == 0
    and may('pexpire', KEYS[1], ARGV[1]) and may('time') then
    local token = KEYS[4] and redis.pcall('incrby', KEYS[4], '1024')
    if (not token or type(token) == 'number' and token >= 1024 and token < 2^53)
        and redis.pcall('hset', KEYS[1], ARGV[2], '1') == 1 then
        redis.call('pexpire', KEYS[1], ARGV[1])
        return token and {0, token} or 0
    elseif type(token) == 'number' and token < 1024 then
        -- Restored: the rest refuses it (take_tokens in holder.lua).
        redis.pcall('incrby', KEYS[4], '-1024')
    end
end

