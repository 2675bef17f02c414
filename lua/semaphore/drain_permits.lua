-- Takes all free permits.
--
-- KEYS 1 the semaphore, 2 record, 3 its mark
-- ARGV 1-4 as in once.lua
-- reply: {how many there were (negative if more permits are taken than exist), as text from 2^53
--        on; mark}; 0 = none
if last == number then
    -- As in try_acquire.lua.
    remember(known)
end
return once(function()
    local free = stored(KEYS[1])
    if not free or free == 0 then
        return nil
    end
    ensure_mark(true)
    -- Text has all digits.
    free = redis.call('get', KEYS[1])
    return {free, 'decrby', KEYS[1], free}
end)
