-- Takes a lock, if nobody holds it or this owner already does.
--
-- KEYS 1 the lock
-- ARGV 1 lease in ms, 2 owner
-- reply: nil = taken; else the holder's time left in ms; WRONGTYPE: what is there is no lock
--
-- An owner names one acquisition, so the count is set and not raised: the request may be sent
-- again under its id after a lost reply. The first one may come late, when the lease has been made
-- longer: it is only ever raised.
--
-- A lock has one field and a time to live, always. A hash without, or with more, is somebody
-- else's data: waiting for it would not end.
--
-- The first PEXPIRE changes nothing, since there is no key: it is refused before the HSET where the
-- second one would be refused after it, and the lock would stay for ever.
local left = redis.call('pttl', KEYS[1])
if left == -2 then
    redis.call('pexpire', KEYS[1], ARGV[1])
elseif redis.call('hlen', KEYS[1]) ~= 1 or left == -1 then
    return redis.error_reply('WRONGTYPE the hash has several fields or no time to live: no lock')
elseif redis.call('hexists', KEYS[1], ARGV[2]) == 0 then
    return left
elseif left >= tonumber(ARGV[1]) then
    return nil
end
redis.call('hset', KEYS[1], ARGV[2], 1)
redis.call('pexpire', KEYS[1], ARGV[1])
return nil
