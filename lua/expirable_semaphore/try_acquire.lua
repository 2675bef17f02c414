-- Takes permits for the first of several threads of a client (`share`).
--
-- KEYS 1 the semaphore, 2 its permits with the ends of their leases
-- ARGV 1 lease in ms, 2 channel, 3 how many clients share, 4 how many threads ask (n), 5…n+4 how
--      many permits each needs, then an id for each of those permits
-- reply: {permits taken}; {0, ms until the next lease ends, or -1}: too few permits for the first
--        thread; {-1, -1}: there is no such semaphore
--
-- A copy of a request finds the ids that the first copy added. The script then takes no permits,
-- and the reply is the number of these ids that remain. (If it took the missing permits again, it
-- would take permits that were already given back.)
local threads = tonumber(ARGV[4])
local first_id = 5 + threads
local known_ids = 0
for _, ends in ipairs(redis.call('zmscore', KEYS[2], unpack(ARGV, first_id))) do
    known_ids = known_ids + (ends and 1 or 0)
end
if known_ids > 0 then
    -- This request was sent again. The script writes nevertheless, because the client may wait for
    -- replicas: see ../lock/acquire.lua.
    redis.call('decrby', KEYS[1], 0)
    return {known_ids}
end

local has_given_back = give_back({})
local free = stored(KEYS[1])
local taken = share(free or 0, ARGV[3], 5, first_id - 1)
local reply = {taken}
if taken > 0 then
    free = redis.call('decrby', KEYS[1], taken)
    local ends_and_ids = {}
    for at = first_id, first_id + taken - 1 do
        ends_and_ids[#ends_and_ids + 1] = now + ARGV[1]
        ends_and_ids[#ends_and_ids + 1] = ARGV[at]
    end
    local added = redis.pcall('zadd', KEYS[2], unpack(ends_and_ids))
    if type(added) == 'table' then
        -- A negative DECRBY undoes the first one, so this needs no right to INCRBY.
        redis.call('decrby', KEYS[1], -taken)
        return added
    end
    -- If a semaphore expires, its permits' key expires with it, as in Redisson.
    local ttl = redis.pcall('pttl', KEYS[1])
    if type(ttl) == 'number' and ttl > 0 then
        redis.pcall('pexpire', KEYS[2], ttl)
    end
else
    local next_end = redis.call('zrange', KEYS[2], 0, 0, 'withscores')[2]
    reply = {(free or next_end) and 0 or -1, next_end and math.min(next_end - now, 2 ^ 53) or -1}
end
if has_given_back then
    publish_free(ARGV[2], free or 0)
end
return reply
