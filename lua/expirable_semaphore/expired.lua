-- Prepended to the scripts of an expirable semaphore that do not use ../once.lua, after
-- ../number.lua. The number of free permits has its own key, as in a plain semaphore. The taken
-- permits are a sorted set: id -> the time at which the permit's lease ends, in ms since 1970.
-- Redisson uses the same two keys. Redisson writes 922337203685477 for a permit without a lease.
--
-- A permit whose lease has ended remains in the set until a script finds it and makes it free
-- again. Only the server's clock decides whether a lease has ended.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Returns whether `ends`, the end of a lease, is in the future. (For an unknown id, `ends` is nil
-- or false.)
local function is_ahead(ends)
    return ends and tonumber(ends) > now
end

-- Gives back the permits of these ids, which are in the set, and the permits whose leases have
-- ended. Returns the new number of free permits, or nil if there was no permit to give back.
--
-- All permits are given back or none: the function raises the number before it removes an id.
-- First, the function tries the commands that the server may refuse, with an unknown id and an
-- empty range of times, so that they change nothing. After these trials, a server that is out of
-- memory does not refuse INCRBY.
local function give_back(ids)
    local expired = redis.call('zcount', KEYS[2], '-inf', now)
    if expired + #ids == 0 then
        return nil
    end
    redis.call('zrem', KEYS[2], '')
    if expired > 0 then
        redis.call('zremrangebyscore', KEYS[2], 0, '(0')
    end
    stored(KEYS[1])
    local free = redis.call('incrby', KEYS[1], expired + #ids)
    if #ids > 0 then
        redis.call('zrem', KEYS[2], unpack(ids))
    end
    if expired > 0 then
        redis.call('zremrangebyscore', KEYS[2], '-inf', now)
    end
    return free
end
