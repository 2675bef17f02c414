-- Makes a barrier if there is none.
--
-- KEYS 1 the barrier, 2 record, 3 its parties
-- ARGV 1-4 as in once.lua, 5 how many parties trip it
-- reply: 1 = made, 0 = a barrier exists
return once(function()
    local present, last = present_generation()
    if present then
        return nil
    end
    check_rights()
    if last then
        -- (`last + 2`: a party that left early may have broken the generation `last + 1`.)
        return {'1', 'hset', barrier, 'parties', ARGV[5],
            fresh_fields(last, math.max(micros(), last + 2))}
    end
    local number = text(micros())
    return {'1', 'hset', barrier, 'parties', ARGV[5], 'generation', number, 'first', number}
end, function()
    redis.call('persist', barrier)
    redis.call('del', parties)
end)
