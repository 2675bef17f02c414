-- How a fair lock is taken. Stands behind line.lua, before the scripts that look at the lock first.

-- Who holds the lock, if anybody does, and its time left. A lock has one field, an owner, and an end,
-- always: waiting for another hash would not end, and it is an error.
local function holder()
    -- Two fields are enough to see, and somebody's data may have a million.
    local scan = redis.call('hscan', lock, 0, 'count', 2)
    local owner = scan[2][1]
    if not owner and scan[1] == '0' then
        return nil
    end
    local left = redis.call('pttl', lock)
    if scan[2][3] or scan[1] ~= '0' or left == -1
        or string.match(owner, '^[%x-]+:()%d+$') ~= 38
    then
        return nil, nil, redis.error_reply(
            'WRONGTYPE the hash is no lock: no owner alone, or no time to live')
    end
    return owner, left
end

-- Takes the lock, which is free. The first PEXPIRE changes nothing. Where it is refused, so would be
-- the one after the HSET, and the lock would stay for ever. But with it the script has written, and
-- the HSET is not refused any more where there is no memory: so who is `new` needs some before.
local function take(owner, lease, new)
    if new then
        redis.call('zadd', timeouts, 'xx', 0, '')
    end
    redis.call('pexpire', lock, lease)
    redis.call('hset', lock, owner, 1)
    redis.call('pexpire', lock, lease)
end

