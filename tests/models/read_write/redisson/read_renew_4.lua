-- What a Redisson 4.7 client has the server do to renew a read lock: its own timeouts.
-- KEYS lock, prefix of all timeouts; ARGV lease, owner. 1 = renewed, 0 = not its own.
local count = tonumber(redis.call('hget', KEYS[1], ARGV[2]))
if not count then
    return 0
end
for i = count, 1, -1 do
    redis.call('pexpire', KEYS[2] .. ':' .. ARGV[2] .. ':rwlock_timeout:' .. i, ARGV[1])
end
redis.call('pexpire', KEYS[1], ARGV[1])
return 1
