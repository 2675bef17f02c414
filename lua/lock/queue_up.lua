-- Stands behind or before free.lua in acquire.lua: adds an entry for an owner that asks for the
-- first time, while another owner of ours has the lock.
--
-- The rest would do the same, but for PTTL: the first in line asks when the lease ends, and so
-- needs it. The others learn it from their poll. (As in free.lua, what the rest costs more are its
-- functions. If the key holds no lock after all, each later request finds out.)
--
-- RPUSH comes first, since its reply says whether anybody waits. What follows it is asked for, as it
-- may not be refused. If the owner had an entry, or the lock has no end, the new entry is taken back.
local redis, KEYS, ARGV, may = redis, KEYS, ARGV, redis.acl_check_cmd
local holders = not ARGV[4] and redis.pcall('hrandfield', KEYS[1], '2')
local who = holders and holders[1]
if who and not holders[2] and who ~= ARGV[2]
    and string.sub(who, 15, 15) == '8' and string.find(who, '^:%d+$', 37)
    and may('pttl', KEYS[1]) and may('lpos', KEYS[2], '') and may('pexpire', KEYS[2], '')
    and may('lrem', KEYS[2], '', '') then
    local clock, length = redis.call('time'), redis.pcall('rpush', KEYS[2], ARGV[2])
    -- (Without memory it is refused, and the rest knows a way.)
    if type(length) == 'number' then
        local place = length - 1
        local left = place == 0 and redis.call('pttl', KEYS[1]) or 2000
        if left >= 0 and (place == 0 or redis.call('lpos', KEYS[2], ARGV[2]) == place) then
            redis.call('pexpire', KEYS[2], '60000')
            return {clock[1] * 1000 + math.floor(clock[2] / 1000), left, place, 0, 1}
        end
        redis.call('lrem', KEYS[2], '-1', ARGV[2])
    end
end

