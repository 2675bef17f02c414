-- Takes all free permits.
--
-- KEYS 1 the semaphore, 2 record, 3 its mark
-- ARGV 1-4 as in once.lua
-- reply: {the number of free permits before, which may be negative, as text from 2^53 on; mark}; 0
--        = no free permits
if recorded_number == number then
    -- This request was sent again. The script writes nevertheless, because the client may wait for
    -- replicas: see ../lock/acquire.lua.
    remember(record)
end
return once(function()
    local free = stored(KEYS[1])
    if not free or free == 0 then
        return nil
    end
    ensure_mark(true)
    -- The key's own text has all digits; a Lua number may not.
    free = redis.call('get', KEYS[1])
    return {free, 'decrby', KEYS[1], free}
end)
