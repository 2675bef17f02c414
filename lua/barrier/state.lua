-- Returns the state of a generation, renews the lease of one of its parties, and breaks the
-- generation if a party has died.
--
-- KEYS 1 the barrier, 2 its parties
-- ARGV 1 channel; if a thread waits, 2 the generation whose end it waits for; if that thread is a
--      party that has arrived, 3 the party, 4 its lease in ms
-- reply: {how many parties trip the barrier, 0: there is no barrier; how many wait; the state of
--        the generation of ARGV 2, or of the present generation; ms until the first lease ends,
--        -1: no lease}
--
-- A lease that has ended is not renewed.
local number = present_generation()
local generation = tonumber(ARGV[2] or number or 0)
if number and not is_broken(number) then
    local arrived = generation == number and ARGV[3]
    -- If the set lacks this party, this server is a new master that never received the arrival. The
    -- other parties would then wait for ever.
    if has_dead_party() or arrived and not redis.call('zscore', parties, ARGV[3]) then
        break_up(ARGV[1], number)
    elseif arrived then
        write_nothing()
        redis.call('zadd', parties, text(millis() + ARGV[4]), ARGV[3])
    end
end
local first_end = redis.call('zrange', parties, 0, 0, 'withscores')[2]
return {
    tonumber(redis.call('hget', barrier, 'parties') or 0), redis.call('zcard', parties),
    state(generation), first_end and math.max(first_end - millis(), 0) or -1,
}
