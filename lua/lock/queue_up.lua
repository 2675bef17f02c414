-- Stands behind or before free.lua in acquire.lua, and does its work while another of our owners
-- has the lock. It adds an entry for an owner that asks for the first time, and answers one that
-- asks again and has its entry.
--
-- The rest of the script would do the same, but with PTTL for every first request. Here only the
-- first in line gets the time left, since it asks when the lease ends. The others learn it from
-- their poll. (The rest costs more because of its functions, as in free.lua: a poll would take
-- nearly twice as long, and a process that waits for thousands of names sends thousands of polls a
-- second. If the key holds no lock, each later request finds that out.)
--
-- RPUSH comes first, since its reply says whether anybody waits. The later commands must not be
-- refused. So before RPUSH, the script asks whether it may run them. The new entry is removed if
-- the owner had an entry before, or if the lock has no end. Any command of a poll may be refused,
-- as in `stand`: a poll adds no entry, and writes only its own time.
local redis, KEYS, ARGV, may = redis, KEYS, ARGV, redis.acl_check_cmd
local holders = redis.pcall('hrandfield', KEYS[1], '2')
local who = holders and holders[1]
local is_held = who and not holders[2] and who ~= ARGV[2]
    and string.sub(who, 15, 15) == '8' and string.find(who, '^:%d+$', 37)
if is_held and ARGV[4] then
    local clock, left = redis.call('time'), redis.call('pttl', KEYS[1])
    local place = left >= 0 and string.find(who, '^[%x-]+:')
        and redis.call('lpos', KEYS[2], ARGV[2])
    if place then
        redis.call('pexpire', KEYS[2], '60000')
        local asked = string.gsub(KEYS[2], 'queue', 'asked', 1)
        redis.call('set', asked .. ':' .. ARGV[2], ARGV[4], 'px', '2000')
        return {clock[1] * 1000 + math.floor(clock[2] / 1000), left, place, 0, 0}
    end
elseif is_held and may('pttl', KEYS[1]) and may('lpos', KEYS[2], '')
    and may('pexpire', KEYS[2], '') and may('lrem', KEYS[2], '', '') then
    local clock, length = redis.call('time'), redis.pcall('rpush', KEYS[2], ARGV[2])
    -- (Without memory RPUSH is refused. The rest can do without.)
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

