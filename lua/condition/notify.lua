-- Notifies one waiter, or all waiters.
--
-- KEYS, ARGV 1 see waiters.lua
-- ARGV 2 owner, 3 number of the notification, 4 '1' = all, 5 '1' = sent again
-- reply: how many waiters were notified; -1 = this owner does not have the lock
local held = is_held_by(ARGV[2])
if held ~= true then
    return held or -1
end
-- The uuid is a part of the number, because two clients may use equal numbers.
local number = string.sub(ARGV[2], 1, 36) .. ':' .. ARGV[3]
if ARGV[4] == '1' then
    -- After all waiters are notified, no waiter is left to which a notification could be passed on.
    -- So this notification needs no records, and the script deletes the earlier records.
    local all = redis.call('lrange', waiting, 0, -1)
    redis.call('del', waiting, notified)
    local notified_count = 0
    for _, waiter in ipairs(all) do
        if listens(waiter) then
            send_notification(waiter)
            notified_count = notified_count + 1
        end
    end
    return notified_count
end
if ARGV[5] == '1' then
    -- If the first copy of this request notified a waiter, that waiter's record still exists. The
    -- waiter deletes its record only after it has had the lock, and this owner still has the lock.
    for _, record in ipairs(redis.call('hvals', notified)) do
        if string.match(record, '%S+$') == number then
            return 1
        end
    end
end
local first, refusal = notify_first(number)
return refusal or (first and 1 or 0)
