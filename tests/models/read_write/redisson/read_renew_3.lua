-- The script with which a Redisson 3.16.8 client renews a read lock: it renews the timeouts of all
-- readers, of any client.
-- KEYS lock, prefix of all timeouts; ARGV lease, owner. Returns 1 if renewed, 0 if not the owner.
if redis.call('hget', KEYS[1], ARGV[2]) == false then
    return 0
end
if redis.call('hlen', KEYS[1]) > 1 then
    for _, field in ipairs(redis.call('hkeys', KEYS[1])) do
        local count = tonumber(redis.call('hget', KEYS[1], field))
        if type(count) == 'number' then
            for i = count, 1, -1 do
                redis.call('pexpire', KEYS[2] .. ':' .. field .. ':rwlock_timeout:' .. i, ARGV[1])
            end
        end
    end
end
redis.call('pexpire', KEYS[1], ARGV[1])
return 1
