-- Returns whether a waiter still waits. Passes on the notifications of dead waiters.
--
-- KEYS, ARGV 1 see waiters.lua
-- ARGV 2 waiter, 3 '1' = the waiter stops waiting
-- reply: 1 = the waiter waits, or waited until now; 0 = the waiter was notified
--
-- If there are more than FEW_RECORDS records, the script reads them only if no request of any
-- waiter has read them in the last CHECK_INTERVAL ms. So a dead waiter cannot prevent this.
local FEW_RECORDS, CHECK_INTERVAL = 8, 300

local own_record = redis.call('hget', notified, ARGV[2])
if own_record then
    record(ARGV[2], string.match(own_record, '%S+$'))
    return 0
elseif not redis.call('lpos', waiting, ARGV[2]) then
    return 0
end
if ARGV[3] == '1' then
    redis.call('lrem', waiting, 1, ARGV[2])
    return 1
end
redis.call('pexpire', waiting, KEYS_TTL)
local count = redis.pcall('hlen', notified)
if type(count) == 'number' and count > FEW_RECORDS then
    local checked_at = tonumber(redis.call('hget', notified, '') or nil)
    -- (If the time is in the future, the server's clock was set back.)
    if checked_at and math.abs(now() - checked_at) < CHECK_INTERVAL then
        return 1
    end
    -- If the server refuses this HSET, each run reads all records.
    redis.pcall('hset', notified, '', string.format('%.0f', now()))
end
local records = redis.call('hgetall', notified)
local has_passed_on = false
for i = 1, #records, 2 do
    local last_keep_alive, number = string.match(records[i + 1], '^(%d+) (%S+)$')
    -- (If the time is in the future, the server's clock was set back.)
    if records[i] ~= ''
        and (not last_keep_alive or math.abs(now() - last_keep_alive) > ALIVE_FOR
            or not listens(records[i]))
    then
        -- This HDEL only tests the right to HDEL. If the HDEL after `notify_first` were refused,
        -- each run would pass the notification on again.
        redis.call('hdel', notified, '')
        local _, refusal = notify_first(number or '0')
        if refusal then
            break
        end
        redis.call('hdel', notified, records[i])
        has_passed_on = true
    end
end
return (not has_passed_on or redis.call('lpos', waiting, ARGV[2])) and 1 or 0
