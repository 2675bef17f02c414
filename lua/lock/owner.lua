-- Stands behind holder.lua or ../fair/line.lua, before the scripts that ask for the one owner of a
-- lock.

-- Returns the lock's owner and its time left, or nil. The third result is an error if the key holds
-- no lock. A lock always has a time to live and one field, its owner. A wait for any other hash
-- would not end. (The script reads two fields at most, since another program's hash may have a
-- million.)
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

