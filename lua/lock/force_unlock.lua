-- Deletes a lock, whoever holds it, and wakes who waits for it.
--
-- KEYS 1 the lock
-- ARGV 1 channel, 2 message
-- reply: 1 = there was one, 0 = there was none; WRONGTYPE: what is there is no lock and is left
--
-- Nobody owns this request, so what it deletes must look like a lock: see acquire.lua.
local fields = redis.call('hlen', KEYS[1])
if fields == 0 then
    return 0
elseif fields ~= 1 or redis.call('pttl', KEYS[1]) == -1 then
    return redis.error_reply('WRONGTYPE the hash has several fields or no time to live: no lock')
end
redis.call('del', KEYS[1])
redis.pcall('publish', ARGV[1], ARGV[2])
return 1
