-- Says how generations went, and breaks the present one if a party of it has died.
--
-- KEYS 1 the barrier, 2 its parties
-- ARGV 1 channel, 2… in pairs: a generation, and a party that arrived in it, or empty
-- reply: {how many parties trip it, 0: there is none; how many wait; the present generation's state;
--        ms until the first lease ends, -1: none; then the state of each generation}
local number = present()
if number and not is_broken(number) then
    local lost = has_died()
    for at = 2, #ARGV, 2 do
        -- An arrival that this server, a new master, does not know: the others would wait for ever.
        lost = lost or ARGV[at] == text(number) and ARGV[at + 1] ~= ''
            and not redis.call('zscore', parties, ARGV[at + 1])
    end
    if lost then
        check()
        redis.call('hset', barrier, 'broken', broken_with(number))
        ended(ARGV[1], number)
    end
end
local first = redis.call('zrange', parties, 0, 0, 'withscores')[2]
local reply = {
    tonumber(redis.call('hget', barrier, 'parties') or 0), redis.call('zcard', parties),
    state(number or 0), first and math.max(first - clock(), 0) or -1,
}
for at = 2, #ARGV, 2 do
    reply[#reply + 1] = state(tonumber(ARGV[at]))
end
return reply
