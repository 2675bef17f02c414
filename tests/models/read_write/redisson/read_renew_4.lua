-- The script with which a Redisson 4.7 client renews a read lock: its own timeouts.
-- KEYS lock, prefix of all timeouts; ARGV lease, owner. Returns 1 if renewed, 0 if not the owner.
local count = tonumber(redis.call('hget', KEYS[1], ARGV[2]))
if not count then
    return 0
end
for i = count, 1, -1 do
    redis.call('pexpire', KEYS[2] .. ':' .. ARGV[2] .. ':rwlock_timeout:' .. i, ARGV[1])
end
redis.call('pexpire', KEYS[1], ARGV[1])
return 1
