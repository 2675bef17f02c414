-- Makes a party arrive, or breaks the generation because a party leaves. The last party trips the
-- barrier. If that party has an action, finish.lua trips the barrier after the action.
--
-- KEYS 1 the barrier, 2 record, 3 its parties
-- ARGV 1-4 as in once.lua, 5 channel, 6 party, 7 its lease in ms, 8 why the party sends this: 0 =
--      to wait, 1 = to wait, and it has an action, 2 = to leave, which breaks the generation in
--      which it waits or would wait, 9 the lowest number that the present generation can have
-- reply: the generation's number, followed by six digits: 1 + the number of missing parties, or 0
--        if the generation is complete without this party (a string, because a Lua number would
--        lose digits); -1 = the generation is broken; 0 = there is no barrier; -2 = the party that
--        leaves had arrived in a generation that has ended, and the server does not know whether
--        the generation tripped
--
-- If a party sends an arrival and then leaves, its request to leave has the arrival's number. So
-- the record shows whether the party has arrived. A copy of the arrival that comes after the
-- request to leave changes nothing. If the generation of the arrival has tripped, the request to
-- leave gets the same reply as the arrival.
local leaves = ARGV[8] == '2'
local number_text, missing = string.match(
    recorded_number == number and recorded_result or '', '^(%d+)(%d%d%d%d%d%d)$')
if leaves then
    write_nothing()
    local generation = present_generation()
    if missing == '000000' then
        -- The request in the record changed nothing, so the party has not arrived.
        recorded_number = number - 1
    elseif missing or generation and redis.call('zscore', parties, ARGV[6]) then
        generation = missing and tonumber(number_text) or generation
        break_up(ARGV[5], generation)
        local outcome = state(generation)
        return outcome == 1 and recorded_result or outcome == 3 and -2 or -1
    end
elseif ARGV[8] == '1' and missing == '000001' and state(tonumber(number_text)) == 2 then
    -- This is a copy of the last party's arrival, and the generation is broken now. The action must
    -- not run.
    return -1
end

local number, ends_generation = present_generation(), false
return once(function()
    if not number then
        if leaves then
            -- Without this record, a late copy of the request would break a new barrier.
            remember(ARGV[1] .. '=0')
        end
        return nil
    end
    check_rights()
    if number < tonumber(ARGV[9]) then
        -- This server is a new master that lacks the last trips, so its present generation contains
        -- parties that have already passed. The barrier begins anew, broken, with an unused number.
        ends_generation = true
        return {'-1', 'hset', barrier, fresh_fields(number, math.max(micros(), ARGV[9]), true)}
    end
    local missing = redis.call('hget', barrier, 'parties') - redis.call('zcard', parties) - 1
    -- If a party leaves while the last party's action runs, the leaving party belongs to the next
    -- generation. So it breaks the next generation.
    local to_break = leaves and missing < 0 and number + 1 or number
    if is_broken(to_break) then
        if leaves then
            -- Without this record, a late copy of this request would break the generation after a
            -- reset.
            remember(ARGV[1] .. '=-1')
        end
        return {'-1'}
    elseif leaves or has_dead_party() then
        ends_generation = to_break == number
        return {'-1', 'hset', barrier, 'broken', broken_numbers_with(to_break)}
    end
    local result = text(number) .. string.format('%06d', missing + 1)
    if missing < 0 then
        return {result}
    end
    if missing == 0 and ARGV[8] == '0' then
        ends_generation = true
        return {result, 'hset', barrier, 'generation', text(number + 1)}
    end
    return {result, 'zadd', parties, text(millis() + ARGV[7]), ARGV[6]}
end, function()
    if ends_generation then
        announce_end(ARGV[5], number)
    end
end)
