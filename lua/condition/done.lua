-- Removes a notified waiter's record. If the waiter did not use its notification, the script passes
-- the notification on.
--
-- KEYS, ARGV 1 see waiters.lua
-- ARGV 2 waiter, 3 '1' = the waiter did not use its notification, and no longer waits
-- reply: 1 = the waiter had been notified; 0 = the waiter has no record
local passes_on = ARGV[3] == '1'
if passes_on then
    redis.call('lrem', waiting, 1, ARGV[2])
end
local own_record = redis.call('hget', notified, ARGV[2])
if not own_record then
    return 0
end
if passes_on then
    -- This HDEL only tests the right to HDEL. If the HDEL after `notify_first` were refused, the
    -- notification would be passed on twice.
    redis.call('hdel', notified, '')
    local _, refusal = notify_first(string.match(own_record, '%S+$') or '0')
    if refusal then
        -- The next run of state.lua finds the record without a keep-alive, and passes the
        -- notification on.
        return refusal
    end
end
redis.call('hdel', notified, ARGV[2])
if redis.pcall('hlen', notified) == 1 then
    -- The last field may be the field '', which is not a record. In that case this HDEL removes the
    -- whole hash, and otherwise it removes nothing.
    redis.call('hdel', notified, '')
end
return 1
