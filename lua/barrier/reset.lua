-- Begins the next generation. The parties that wait in the present generation find it broken.
--
-- KEYS 1 the barrier, 2 record, 3 its parties
-- ARGV 1-4 as in once.lua, 5 channel
-- reply: 1 = done, 0 = there is no barrier
local number = present_generation()
return once(function()
    if not number then
        return nil
    end
    check_rights()
    -- (A party that left early may have broken the next generation: see arrive.lua.)
    local next = is_broken(number + 1) and number + 2 or number + 1
    -- The generation breaks even if it has no parties: a new master may lack a party's arrival.
    return {'1', 'hset', barrier, 'generation', text(next),
        'broken', is_broken(number) and broken_numbers() or broken_numbers_with(number)}
end, function()
    announce_end(ARGV[5], number)
end)
