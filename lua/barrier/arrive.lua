-- Arrives. The last party trips the barrier; if it has an action, `finish` does that after it.
--
-- KEYS 1 the barrier, 2 slot, 3 its parties
-- ARGV 1-4 as in once.lua, 5 channel, 6 party, 7 its lease in ms, 8 1 = it has an action
-- reply: the generation's number, and in six further digits 1 + how many parties are still to come
--        (as text, for it is more than a number of Lua's has); 0 = it has not arrived, and `look`
--        says why
local number, ends = present(), false
return once(function()
    if not number or is_broken(number) then
        return nil
    end
    check()
    if has_died() then
        ends = true
        return {'0', 'hset', barrier, 'broken', broken_with(number)}
    end
    local missing = redis.call('hget', barrier, 'parties') - redis.call('zcard', parties) - 1
    if missing < 0 then
        -- The last party's action runs.
        return nil
    end
    local result = text(number) .. string.format('%06d', missing + 1)
    if missing == 0 and ARGV[8] == '0' then
        ends = true
        return {result, 'hset', barrier, 'generation', text(number + 1)}
    end
    return {result, 'zadd', parties, text(clock() + ARGV[7]), ARGV[6]}
end, function()
    if ends then
        ended(ARGV[5], number)
    end
end)
