-- Returns what the server knows of a name, whatever the name is for.
--
-- KEYS 1 the name, 2 the queue of a fair lock, 3 that of a lock, 4 that of a read-write lock,
--      5 when the leases of a semaphore's permits end, 6 the last fencing token
-- ARGV 1 how the keys of readers begin, 2.. channels
-- reply: {type, time to live, now (ms since 1970), value, token,
--         {field, value, time left, …}, {kind of lock, owner, since, …}, {id, end, …},
--         {channel, listeners, …}}
--
-- It changes nothing. MOST bounds its time. What the user may not read besides the name itself
-- counts as absent, and so does another program's data there.
local MOST = 1000
local name = KEYS[1]

local function read(...)
    local reply = redis.pcall(...)
    return not (type(reply) == 'table' and reply.err) and reply or nil
end

-- Since when each waits is known of those that have asked again.
local waiting = {}
for i, kind in ipairs({'fair', 'lock', 'read-write'}) do
    local asked = (string.gsub(KEYS[i + 1], 'queue', 'asked', 1)) .. ':'
    for _, owner in ipairs(read('lrange', KEYS[i + 1], 0, MOST - 1) or {}) do
        local last = #waiting
        waiting[last + 1], waiting[last + 2] = kind, owner
        waiting[last + 3] = kind ~= 'fair' and read('get', asked .. owner) or ''
    end
end

local kind, fields, value = redis.call('type', name).ok, {}, ''
if kind == 'hash' and redis.call('hlen', name) <= MOST then
    local all, is_shared = redis.call('hgetall', name), redis.call('hexists', name, 'mode') == 1
    for i = 1, #all, 2 do
        local count = string.sub(all[i + 1], 1, 20)
        -- A reader has such a key for each level; the last one is there as long as it reads.
        local key = is_shared and ARGV[1] .. all[i] .. ':rwlock_timeout:' .. count
        table.insert(fields, all[i])
        table.insert(fields, count)
        table.insert(fields, key and read('pttl', key) or -2)
    end
elseif kind == 'string' then
    value = redis.call('getrange', name, 0, 20)
end
local clock = redis.call('time')
return {
    kind, redis.call('pttl', name), clock[1] * 1000 + math.floor(clock[2] / 1000), value,
    read('get', KEYS[6]) or '', fields, waiting,
    read('zrange', KEYS[5], 0, MOST - 1, 'withscores') or {},
    read('pubsub', 'numsub', unpack(ARGV, 2)) or {},
}
