-- Prepended to the scripts that notify waiters, after waiters.lua.

-- Returns whether a waiter's process listens to its channel. The script runs PUBSUB NUMSUB once for
-- each process. (The number that PUBLISH returns also includes pattern subscriptions of other
-- clients.)
local heard_by
local function listens(waiter)
    local own = own_channel(waiter)
    heard_by = heard_by or {}
    if heard_by[own] == nil then
        local heard = redis.pcall('pubsub', 'numsub', own)
        heard_by[own] = refused(heard) and true or heard[2] > 0
    end
    return heard_by[own]
end

-- A refused message does no harm, because each waiter also runs look.lua from time to time.
local function tell(waiter)
    redis.pcall('publish', own_channel(waiter),
        table.concat({'notify', string.sub(waiter, 38), ARGV[1], waiting}, ' '))
end

-- Notifies the first waiter whose process listens. Returns that waiter, or nil. The second result
-- is the server's refusal, after which no waiter is notified. The function makes the record before
-- it removes the entry: otherwise an error between the two would lose the notification.
local function notify_first(number)
    while true do
        local first = redis.call('lindex', waiting, 0)
        if not first then
            return nil
        end
        local lives = listens(first)
        local trouble = lives and record(first, number)
        if trouble then
            return nil, trouble
        end
        local gone = redis.pcall('lpop', waiting)
        if refused(gone) then
            redis.pcall('hdel', notified, first)
            return nil, gone
        end
        if lives then
            tell(first)
            return first
        end
    end
end

