//! Scripts with the same effect as Redisson's scripts.

/// `KEYS[1]` name; `ARGV` lease, owner. Returns nil if granted, or the remaining lease.
pub(super) const ACQUIRE: &str = r"
local name, owner = KEYS[1], ARGV[2]
if redis.call('exists', name) == 0 or redis.call('hexists', name, owner) == 1 then
    redis.call('hincrby', name, owner, 1)
    redis.call('pexpire', name, ARGV[1])
    return nil
end
return redis.call('pttl', name)
";

/// `KEYS` name, channel; `ARGV` message, lease, owner. Returns nil if not the owner, 0 if the owner
/// still holds a level, 1 if the lock is free.
pub(super) const UNLOCK: &str = r"
local name, owner = KEYS[1], ARGV[3]
if redis.call('hexists', name, owner) == 0 then
    return nil
end
if redis.call('hincrby', name, owner, -1) > 0 then
    redis.call('pexpire', name, ARGV[2])
    return 0
end
redis.call('del', name)
redis.call('publish', KEYS[2], ARGV[1])
return 1
";

/// `KEYS` name, timeouts; `ARGV` lease, owner, the owner as a writer. Returns nil if granted, or
/// the remaining lease.
pub(super) const READ_ACQUIRE: &str = r"
local name, owner = KEYS[1], ARGV[2]
local mode = redis.call('hget', name, 'mode')
if mode and mode ~= 'read' and redis.call('hexists', name, ARGV[3]) == 0 then
    return redis.call('pttl', name)
end
if not mode then
    redis.call('hset', name, 'mode', 'read')
end
local timeout = KEYS[2] .. ':' .. redis.call('hincrby', name, owner, 1)
redis.call('set', timeout, 1)
redis.call('pexpire', timeout, ARGV[1])
redis.call('pexpire', name, math.max(redis.call('pttl', name), ARGV[1]))
return nil
";

/// `KEYS` name, channel, timeouts, the common prefix of all timeouts; `ARGV` message, owner.
/// Returns nil if not the owner, 0 if the lock is still held, 1 if it is free.
pub(super) const READ_UNLOCK: &str = r"
local name, owner = KEYS[1], ARGV[2]
local mode = redis.call('hget', name, 'mode')
if not mode or redis.call('hexists', name, owner) == 0 then
    return nil
end
local level = redis.call('hincrby', name, owner, -1)
if level == 0 then
    redis.call('hdel', name, owner)
end
redis.call('del', KEYS[3] .. ':' .. level + 1)
if redis.call('hlen', name) > 1 then
    local longest = -3
    for _, field in ipairs(redis.call('hkeys', name)) do
        for i = tonumber(redis.call('hget', name, field)) or 0, 1, -1 do
            local left = redis.call('pttl', KEYS[4] .. ':' .. field .. ':rwlock_timeout:' .. i)
            longest = math.max(longest, left)
        end
    end
    if longest > 0 then
        redis.call('pexpire', name, longest)
        return 0
    elseif mode == 'write' then
        return 0
    end
end
redis.call('del', name)
redis.call('publish', KEYS[2], ARGV[1])
return 1
";

/// `KEYS[1]` name; `ARGV` lease, owner. Returns nil if granted, or the remaining lease.
pub(super) const WRITE_ACQUIRE: &str = r"
local name, owner = KEYS[1], ARGV[2]
local mode = redis.call('hget', name, 'mode')
if mode and (mode ~= 'write' or redis.call('hexists', name, owner) == 0) then
    return redis.call('pttl', name)
end
redis.call('hset', name, 'mode', 'write')
redis.call('hincrby', name, owner, 1)
redis.call('pexpire', name, math.max(redis.call('pttl', name), 0) + ARGV[1])
return nil
";

/// `KEYS` name, channel; `ARGV` message, lease, owner. Returns nil if not the owner, 0 if the owner
/// still holds a level, 1 if the lock is free.
pub(super) const WRITE_UNLOCK: &str = r"
local name, owner = KEYS[1], ARGV[3]
if redis.call('hget', name, 'mode') ~= 'write' or redis.call('hexists', name, owner) == 0 then
    return nil
end
if redis.call('hincrby', name, owner, -1) > 0 then
    redis.call('pexpire', name, ARGV[2])
    return 0
end
redis.call('hdel', name, owner)
if redis.call('hlen', name) > 1 then
    redis.call('hset', name, 'mode', 'read')
else
    redis.call('del', name)
    redis.call('publish', KEYS[2], ARGV[1])
end
return 1
";

/// `KEYS` name, queue, timeouts; `ARGV` lease, owner, wait, now.
pub(super) const FAIR_ACQUIRE: &str = r"
local name, queue, timeouts = KEYS[1], KEYS[2], KEYS[3]
local owner, wait, now = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local head = redis.call('lindex', queue, 0)
while head do
    local score = redis.call('zscore', timeouts, head)
    if not score or tonumber(score) > now then
        break
    end
    redis.call('zrem', timeouts, head)
    redis.call('lpop', queue)
    head = redis.call('lindex', queue, 0)
end
if redis.call('exists', name) == 0 and (not head or head == owner) then
    redis.call('lpop', queue)
    redis.call('zrem', timeouts, owner)
    for _, waiter in ipairs(redis.call('zrange', timeouts, 0, -1)) do
        redis.call('zincrby', timeouts, -wait, waiter)
    end
    redis.call('hset', name, owner, 1)
    redis.call('pexpire', name, ARGV[1])
    return nil
end
if redis.call('hexists', name, owner) == 1 then
    redis.call('hincrby', name, owner, 1)
    redis.call('pexpire', name, ARGV[1])
    return nil
end
local left = redis.call('pttl', name)
if redis.call('zscore', timeouts, owner) then
    return math.max(0, left)
end
local tail = redis.call('lindex', queue, -1)
local score = tail and tail ~= owner and redis.call('zscore', timeouts, tail)
local ttl = score and tonumber(score) - now or left
if redis.call('zadd', timeouts, ttl + wait + now, owner) == 1 then
    redis.call('rpush', queue, owner)
end
return ttl
";

/// `KEYS` name, queue, timeouts, channel; `ARGV` message, lease, owner, now.
pub(super) const FAIR_UNLOCK: &str = r"
local name, queue, timeouts = KEYS[1], KEYS[2], KEYS[3]
local owner, now = ARGV[3], tonumber(ARGV[4])
local head = redis.call('lindex', queue, 0)
while head do
    local score = redis.call('zscore', timeouts, head)
    if not score or tonumber(score) > now then
        break
    end
    redis.call('zrem', timeouts, head)
    redis.call('lpop', queue)
    head = redis.call('lindex', queue, 0)
end
local function wake_head()
    if head then
        redis.call('publish', KEYS[4] .. ':' .. head, ARGV[1])
    end
    return 1
end
if redis.call('exists', name) == 0 then
    return wake_head()
end
if redis.call('hexists', name, owner) == 0 then
    return nil
end
if redis.call('hincrby', name, owner, -1) > 0 then
    redis.call('pexpire', name, ARGV[2])
    return 0
end
redis.call('del', name)
return wake_head()
";

/// `KEYS[1]` name; `ARGV[1]` the number of permits. Returns 1 if granted, else 0.
pub(super) const TAKE_PERMITS: &str = r"
local value = tonumber(redis.call('get', KEYS[1]) or '0')
if value >= tonumber(ARGV[1]) then
    redis.call('decrby', KEYS[1], ARGV[1])
    return 1
end
return 0
";

/// `KEYS` name, channel; `ARGV[1]` the number of permits.
pub(super) const RETURN_PERMITS: &str = r"
redis.call('publish', KEYS[2], redis.call('incrby', KEYS[1], ARGV[1]))
";

/// `KEYS` name, channel; `ARGV[1]` the number of permits. Returns 1 if there was no value yet, else
/// 0.
pub(super) const SET_PERMITS: &str = r"
if redis.call('set', KEYS[1], ARGV[1], 'NX') then
    redis.call('publish', KEYS[2], ARGV[1])
    return 1
end
return 0
";

/// `KEYS` name, timeouts, channel; `ARGV` permits, the end of the lease, now, the end of an
/// unlimited lease, id. Returns "OK" if granted, `:` and the end of the next lease, or nil.
pub(super) const TAKE_LEASED_PERMIT: &str = r"
local lapsed = redis.call('zrangebyscore', KEYS[2], 0, ARGV[3], 'limit', 0, ARGV[1])
if #lapsed > 0 then
    redis.call('zrem', KEYS[2], unpack(lapsed))
    local free = redis.call('incrby', KEYS[1], #lapsed)
    if free > 0 then
        redis.call('publish', KEYS[3], free)
    end
end
local free = redis.call('get', KEYS[1])
if free and tonumber(free) >= tonumber(ARGV[1]) then
    redis.call('decrby', KEYS[1], ARGV[1])
    redis.call('zadd', KEYS[2], ARGV[2], ARGV[5])
    local left = redis.call('pttl', KEYS[1])
    if left > 0 then
        redis.call('pexpire', KEYS[2], left)
    end
    return 'OK'
end
local first = redis.call('zrange', KEYS[2], 0, 0, 'withscores')
if first[1] and first[2] ~= ARGV[4] then
    return ':' .. first[2]
end
return nil
";

/// `KEYS` name, channel, timeouts; `ARGV` id, permits, now. Returns 1, or 0 if the lease had ended.
pub(super) const RETURN_LEASED_PERMIT: &str = r"
local ends = redis.call('zscore', KEYS[3], ARGV[1])
if redis.call('zrem', KEYS[3], ARGV[1]) ~= 1 then
    return 0
end
redis.call('publish', KEYS[2], redis.call('incrby', KEYS[1], ARGV[2]))
return tonumber(ends) > tonumber(ARGV[3]) and 1 or 0
";

/// `KEYS` name, channel; `ARGV` message, count. Returns 1 if there was no count yet, else 0.
pub(super) const SET_COUNT: &str = r"
if redis.call('set', KEYS[1], ARGV[2], 'NX') then
    redis.call('publish', KEYS[2], ARGV[1])
    return 1
end
return 0
";

/// `KEYS` name, channel; `ARGV[1]` message.
pub(super) const COUNT_DOWN: &str = r"
local value = redis.call('decr', KEYS[1])
if value <= 0 then
    redis.call('del', KEYS[1])
end
if value == 0 then
    redis.call('publish', KEYS[2], ARGV[1])
end
";

pub(super) const ALL: [&str; 15] = [
    READ_ACQUIRE,
    READ_UNLOCK,
    WRITE_ACQUIRE,
    WRITE_UNLOCK,
    ACQUIRE,
    UNLOCK,
    FAIR_ACQUIRE,
    FAIR_UNLOCK,
    TAKE_PERMITS,
    RETURN_PERMITS,
    TAKE_LEASED_PERMIT,
    RETURN_LEASED_PERMIT,
    SET_PERMITS,
    SET_COUNT,
    COUNT_DOWN,
];
