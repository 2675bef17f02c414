-- Begins the next generation. The parties of the present one, if any wait, find it broken.
--
-- KEYS 1 the barrier, 2 slot, 3 its parties
-- ARGV 1-4 as in once.lua, 5 channel
-- reply: 1 = done, 0 = there is no barrier
return once(function()
    local number = present()
    if not number then
        return nil
    end
    check()
    -- Also without parties: a new master may not know one that has arrived.
    return {'1', 'hset', barrier, 'generation', text(number + 1),
        'broken', is_broken(number) and broken() or broken_with(number)}
end, function()
    ended(ARGV[5])
end)
