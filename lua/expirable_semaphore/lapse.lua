-- Stands behind number.lua, before the scripts of an expirable semaphore that have no number
-- (../once.lua). The free permits are a number, as a semaphore's. The taken permits are a sorted
-- set: id -> the time at which its lease ends, in ms since 1970. Both are Redisson's keys. A permit
-- of Redisson's without a lease has the time 922337203685477.
--
-- A permit with an ended lease stays in the set until a script finds it: then the permit is free
-- again. The clock is the server's, so a client's clock neither frees nor keeps a permit.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Whether `ends`, the end of a lease, is still ahead. For an unknown id, `ends` is not there.
local function is_ahead(ends)
    return ends and tonumber(ends) > now
end

-- Gives back the permits of these ids, which are in the set, and those with ended leases. Returns
-- how many permits are free then, or nil if there was no permit to give back.
--
-- All or nothing: the number is raised before an id goes. Commands that may be refused are tried
-- before that in a form that changes nothing, with an unknown id and an empty range of times. That
-- also lets the number be raised without memory.
local function take_back(ids)
    local lapsed = redis.call('zcount', KEYS[2], '-inf', now)
    if lapsed + #ids == 0 then
        return nil
    end
    redis.call('zrem', KEYS[2], '')
    if lapsed > 0 then
        redis.call('zremrangebyscore', KEYS[2], 0, '(0')
    end
    stored(KEYS[1])
    local free = redis.call('incrby', KEYS[1], lapsed + #ids)
    if #ids > 0 then
        redis.call('zrem', KEYS[2], unpack(ids))
    end
    if lapsed > 0 then
        redis.call('zremrangebyscore', KEYS[2], '-inf', now)
    end
    return free
end
