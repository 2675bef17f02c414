-- Stands before the scripts that ask who has a lock with one owner, behind holder.lua or
-- ../fair/line.lua.

-- The lock's owner, and for how long; nil if there is none. The third: the key holds no lock. A
-- lock always has one field, an owner, and a time to live: a wait for another hash would not end.
-- (It may have a million fields: two tell.)
local function holder()
    local fields = redis.call('hrandfield', lock, 2)
    local owner = fields[1]
    if not owner then
        return nil
    end
    local left = redis.call('pttl', lock)
    if fields[2] or left == -1 or string.match(owner, '^[%x-]+:()%d+$') ~= 38 then
        return nil, left, redis.error_reply(
            'WRONGTYPE the hash is no lock: no owner alone, or no time to live')
    end
    return owner, left
end

