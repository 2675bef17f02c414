-- Takes permits, if there are enough.
--
-- KEYS 1 the semaphore, 2 slot
-- ARGV 1-4 as in once.lua, 5 permits
-- reply: how many were taken, all or 0
return once(function()
    if (stored(KEYS[1]) or 0) < tonumber(ARGV[5]) then
        return nil
    end
    return {ARGV[5], 'decrby', KEYS[1], ARGV[5]}
end)
