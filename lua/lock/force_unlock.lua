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
end
local holder = fields == 1 and redis.call('hkeys', KEYS[1])[1]
if not holder or redis.call('pttl', KEYS[1]) == -1
    or string.match(holder, '^[%x-]+:()%d+$') ~= 38
then
    return redis.error_reply('WRONGTYPE the hash is no lock: no owner alone, or no time to live')
end
redis.call('del', KEYS[1])
redis.pcall('publish', ARGV[1], ARGV[2])
return 1
