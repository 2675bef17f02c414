-- Takes a lock, if nobody holds it or this owner already does.
--
-- KEYS 1 the lock
-- ARGV 1 lease in ms, 2 owner
-- reply: nil = taken; else the holder's time left in ms (-1: no end)
--
-- An owner names one acquisition, so the count is set and not raised: the request may be sent
-- again under its id after a lost reply. The first one may come late, when the lease has been made
-- longer: it is only ever raised. A lock never stays without an end: where HSET is allowed and
-- PEXPIRE refused (an ACL), the lock would be held for ever.
if redis.call('exists', KEYS[1]) == 1 then
    local left = redis.call('pttl', KEYS[1])
    if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then
        return left
    elseif left >= tonumber(ARGV[1]) then
        return nil
    end
end
redis.call('hset', KEYS[1], ARGV[2], 1)
local expiry = redis.pcall('pexpire', KEYS[1], ARGV[1])
if type(expiry) == 'table' and expiry.err then
    redis.call('del', KEYS[1])
    return expiry
end
return nil
