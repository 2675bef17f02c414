-- Takes a lock, if nobody holds it or this owner already does.
--
-- KEYS 1 the lock
-- ARGV 1 lease in ms, 2 owner
-- reply: nil = taken; else the holder's time left in ms; WRONGTYPE: what is there is no lock;
--        NOPERM: what the user may not do
--
-- An owner names one acquisition, so the count is set and not raised: the request may be sent
-- again under its id after a lost reply. The first one may come late, when the lease has been made
-- longer: it is only ever raised.
--
-- A lock has one field, an owner, and a time to live, always. Another hash is somebody else's data:
-- waiting for it would not end. (HLEN first: it may have a million fields.)
--
-- Whether PEXPIRE is allowed is asked before the HSET: refused after it, the lock would stay for
-- ever. Servers before 7.0 cannot be asked; there a PEXPIRE that finds no key and changes nothing
-- is refused first. (Not on the others: after a write of any kind HSET is not refused any more when
-- memory is short.)
local left = redis.call('pttl', KEYS[1])
if left == -2 then
    if not redis.acl_check_cmd then
        redis.call('pexpire', KEYS[1], ARGV[1])
    elseif not redis.acl_check_cmd('pexpire', KEYS[1], ARGV[1]) then
        return redis.error_reply('NOPERM the user may not run PEXPIRE on this key')
    end
else
    local holder = redis.call('hlen', KEYS[1]) == 1 and redis.call('hkeys', KEYS[1])[1]
    if not holder or left == -1 or string.match(holder, '^[%x-]+:()%d+$') ~= 38 then
        return redis.error_reply('WRONGTYPE the hash is no lock: no owner alone, or no time to live')
    elseif holder ~= ARGV[2] then
        return left
    elseif left >= tonumber(ARGV[1]) then
        return nil
    end
end
redis.call('hset', KEYS[1], ARGV[2], 1)
redis.call('pexpire', KEYS[1], ARGV[1])
return nil
