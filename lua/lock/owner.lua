-- Prepended to the scripts that read the one owner of a lock, after holder.lua or
-- ../fair/queue.lua.

-- Returns the lock's owner and its time left, or nil. The third result is an error if the key holds
-- no lock. A lock always has a time to live and one field, its owner. Any other hash is an error,
-- because a wait for it would never end. (The script reads two fields at most: another program's
-- hash may have a million.)
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

