-- Prepended to the scripts that notify waiters, after waiters.lua.

-- Returns whether a waiter's process listens to its channel. The script runs PUBSUB NUMSUB once for
-- each process. (The number that PUBLISH returns also includes pattern subscriptions of other
-- clients.)
local has_listener
local function listens(waiter)
    local channel = own_channel(waiter)
    has_listener = has_listener or {}
    if has_listener[channel] == nil then
        local subscribers = redis.pcall('pubsub', 'numsub', channel)
        has_listener[channel] = refused(subscribers) and true or subscribers[2] > 0
    end
    return has_listener[channel]
end

-- A refused message does no harm, because each waiter also runs state.lua from time to time.
local function send_notification(waiter)
    redis.pcall('publish', own_channel(waiter),
        table.concat({'notify', string.sub(waiter, 38), ARGV[1], waiting}, ' '))
end

-- Notifies the first waiter whose process listens. Returns that waiter, or nil. The second result
-- is the server's refusal: in that case no waiter is notified. The function makes the record before
-- it removes the entry, because an error between these two steps must not lose the notification.
local function notify_first(number)
    while true do
        local first = redis.call('lindex', waiting, 0)
        if not first then
            return nil
        end
        local is_alive = listens(first)
        local refusal = is_alive and record(first, number)
        if refusal then
            return nil, refusal
        end
        local popped = redis.pcall('lpop', waiting)
        if refused(popped) then
            redis.pcall('hdel', notified, first)
            return nil, popped
        end
        if is_alive then
            send_notification(first)
            return first
        end
    end
end

