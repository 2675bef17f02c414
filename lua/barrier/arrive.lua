-- Makes a party arrive, or takes its arrival back. The last party trips the barrier. If that party
-- has an action, `finish` trips the barrier after the action.
--
-- KEYS 1 the barrier, 2 record, 3 its parties
-- ARGV 1-4 as in once.lua, 5 channel, 6 party, 7 its lease in ms, 8 why the party sends this: 0 =
--      to wait, 1 = to wait, and it has an action, 2 = to break the generation in which it waits or
--      would wait, 9 the lowest number that the present generation can have
-- reply: the generation's number, followed by six digits: 1 + the number of parties that are still
--        missing, or 0: the generation is complete, and the party has not arrived (as text, since
--        Lua's numbers have too few digits); -1 = the generation is broken; 0 = there is no
--        barrier; -2 = the party that leaves had arrived in a generation that has ended, and the
--        server does not know whether it tripped
--
-- A party that leaves after it has sent an arrival reuses the request number of the arrival. So a
-- later copy of the arrival changes nothing, and the script finds in the record whether the arrival
-- was made. If the generation of the arrival has tripped, the reply is that of the arrival.
local leaves = ARGV[8] == '2'
local text_of, missing = string.match(last == number and result or '', '^(%d+)(%d%d%d%d%d%d)$')
if leaves then
    make_room()
    local generation = present()
    if missing == '000000' then
        -- The party has not arrived: the remembered request changed nothing.
        last = number - 1
    elseif missing or generation and redis.call('zscore', parties, ARGV[6]) then
        generation = missing and tonumber(text_of) or generation
        break_up(ARGV[5], generation)
        local went = state(generation)
        return went == 1 and result or went == 3 and -2 or -1
    end
elseif ARGV[8] == '1' and missing == '000001' and state(tonumber(text_of)) == 2 then
    -- A copy of the last party's arrival may come after the generation was broken. Then the action
    -- must not run.
    return -1
end

local number, ends = present(), false
return once(function()
    if not number then
        return nil
    end
    check()
    if number < tonumber(ARGV[9]) then
        -- This server is a new master that lacks the last trips, so its present generation contains
        -- parties that have passed already. The next reset begins a generation with an unused
        -- number.
        ends = true
        return {'-1', 'hset', barrier, anew(number, math.max(micros(), ARGV[9]), true)}
    end
    local missing = redis.call('hget', barrier, 'parties') - redis.call('zcard', parties) - 1
    -- While the last party's action runs, a party that leaves would have waited in the next
    -- generation. So the next generation begins broken.
    local breaks = leaves and missing < 0 and number + 1 or number
    if is_broken(breaks) then
        if leaves then
            -- Without this, a copy that comes after a reset would break the next generation.
            remember(ARGV[1] .. '=-1')
        end
        return {'-1'}
    elseif leaves or has_died() then
        ends = breaks == number
        return {'-1', 'hset', barrier, 'broken', broken_with(breaks)}
    end
    local result = text(number) .. string.format('%06d', missing + 1)
    if missing < 0 then
        return {result}
    end
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
