-- Returns the holders, waiters and listeners of a name, for any kind of synchronizer.
--
-- KEYS 1 the name, 2 the queue of a fair lock, 3 the queue of a lock, 4 the queue of a read-write
--      lock, 5 the times at which the leases of a semaphore's permits end, 6 the last fencing token
-- ARGV 1 the prefix of readers' keys; then channels: 2 of a lock, 3 the lock's second channel,
--      to which only redlatch's clients listen; 4, 5 the same of a read-write lock; 6 of a
--      semaphore; 7 of a latch
-- reply: {type, "shared" for a hash with a mode; time to live; value; token;
--         {owner or permit, 1 = shared, levels, time left, …};
--         {owner, 1 = shared, time waited, kind of lock, …};
--         {the Redisson clients that listen for a lock, and for a read-write lock; all clients
--         that listen for a semaphore, and for a latch}}
--
-- Times are in ms. A negative time or token means that it is unknown. A negative time to live or
-- time left may also mean that there is no end.
--
-- The script changes nothing. It reads at most MAX_ENTRIES queue entries or holders, so that it
-- does not block the server. If the user may not read a key, the script treats the key as absent,
-- except KEYS 1. It also treats a key of another type as absent.
local MAX_ENTRIES = 1000
local name = KEYS[1]
local clock = redis.call('time')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function read(...)
    local reply = redis.pcall(...)
    return not (type(reply) == 'table' and reply.err) and reply or nil
end

-- Returns `text` as a number between -2^53 and 2^53, or nil. (Servers convert greater numbers to
-- replies in different ways.)
local function number(text)
    local value = tonumber(text or '')
    return value and value > -2 ^ 53 and value < 2 ^ 53 and value or nil
end

-- Adds an owner to a list. If `has_marks`, the suffix `:write` marks an owner that writes or waits
-- to write.
local function add(list, has_marks, owner, ...)
    local last, writes = #list, 1
    if has_marks then
        owner, writes = string.gsub(owner, ':write$', '')
    end
    list[last + 1], list[last + 2], list[last + 3], list[last + 4] = owner, 1 - writes, ...
end

-- The time since which a waiter waits is stored only after the waiter's second request.
local waiting = {}
for i, kind in ipairs({'fair', 'lock', 'read-write'}) do
    local asked = (string.gsub(KEYS[i + 1], 'queue', 'asked', 1)) .. ':'
    for _, owner in ipairs(read('lrange', KEYS[i + 1], 0, MAX_ENTRIES - 1) or {}) do
        local since = kind ~= 'fair' and number(read('get', asked .. owner))
        add(waiting, kind == 'read-write', owner, since and now - since or -1, kind)
    end
end

local kind, left, value, holders = redis.call('type', name).ok, redis.call('pttl', name), '', {}
if kind == 'hash' and redis.call('hlen', name) <= MAX_ENTRIES then
    local all, is_shared = redis.call('hgetall', name), redis.call('hexists', name, 'mode') == 1
    kind = is_shared and 'shared' or kind
    for i = 1, #all, 2 do
        local owner, count = all[i], string.sub(all[i + 1], 1, 20)
        -- A reader has a timeout key for each of its levels. The timeout key of the last level
        -- exists as long as the owner reads.
        local key = ARGV[1] .. owner .. ':rwlock_timeout:' .. count
        local reads_for = is_shared and read('pttl', key) or -2
        if owner ~= 'mode' then
            add(holders, is_shared, owner, number(count) or 1, reads_for < 0 and left or reads_for)
        end
    end
elseif kind ~= 'hash' then
    local permits = read('zrange', KEYS[5], '(' .. string.format('%.0f', now), '+inf', 'byscore',
        'limit', 0, MAX_ENTRIES, 'withscores') or {}
    for i = 1, #permits, 2 do
        local ends = tonumber(permits[i + 1])
        -- Redisson writes 922337203685477 for a permit without a lease.
        add(holders, false, permits[i], 1, ends < 922337203685477 and ends - now or -1)
    end
    value = kind == 'string' and redis.call('getrange', name, 0, 20) or ''
end
local subscribers = read('pubsub', 'numsub', unpack(ARGV, 2)) or {}
local function listeners(channel, redlatch_channel)
    return math.max(0, (subscribers[2 * channel] or 0)
        - (redlatch_channel and subscribers[2 * redlatch_channel] or 0))
end
return {
    kind, left, value, number(read('get', KEYS[6])) or -1, holders, waiting,
    {listeners(1, 2), listeners(3, 4), listeners(5), listeners(6)},
}
