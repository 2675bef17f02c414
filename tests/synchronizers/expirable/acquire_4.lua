-- The script of a Redisson 4.7 client for `tryAcquire`.
-- KEYS name, timeouts, channel; ARGV permits, the end of the leases, now, the end of an unlimited
-- lease, PUBLISH, ids. Returns "OK" if granted, ":" and the end of the next lease, or nil.
local lapsed = redis.call('zrangebyscore', KEYS[2], 0, ARGV[3], 'limit', 0, ARGV[1])
if #lapsed > 0 then
    redis.call('zrem', KEYS[2], unpack(lapsed))
    local free = redis.call('incrby', KEYS[1], #lapsed)
    if tonumber(free) > 0 then
        redis.call(ARGV[5], KEYS[3], free)
    end
end
local free = redis.call('get', KEYS[1])
if free ~= false and tonumber(free) >= tonumber(ARGV[1]) then
    redis.call('decrby', KEYS[1], ARGV[1])
    for at = 6, #ARGV do
        redis.call('zadd', KEYS[2], ARGV[2], ARGV[at])
    end
    local left = redis.call('pttl', KEYS[1])
    if left > 0 then
        redis.call('pexpire', KEYS[2], left)
    end
    return 'OK'
end
local first = redis.call('zrange', KEYS[2], 0, 0, 'withscores')
if first[1] and first[2] ~= ARGV[4] then
    return ':' .. first[2]
end
return nil
