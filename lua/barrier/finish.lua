-- Ends a generation. The last party sends this to trip the barrier after the party's action, or any
-- party sends this to break the barrier.
--
-- KEYS 1 the barrier, 2 its parties
-- ARGV 1 channel, 2 generation, 3 party, 4 1 = trip, 0 = break
-- reply: 1 = the generation tripped, 2 = it is broken, 3 = the server does not know
--
-- A request that is sent again changes nothing and gets the same reply, because the generation has
-- ended.
local number = tonumber(ARGV[2])
if ARGV[4] == '1' and state(number) == 0 and redis.call('zscore', parties, ARGV[3])
    and not has_dead_party()
then
    check_rights()
    write_nothing()
    redis.call('hset', barrier, 'generation', text(number + 1))
    announce_end(ARGV[1], number)
end
break_up(ARGV[1], number)
return state(number)
