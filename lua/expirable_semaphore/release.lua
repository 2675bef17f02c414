-- Gives permits back and wakes waiters; also gives back others with ended leases.
--
-- KEYS 1 the semaphore, 2 when its permits' leases end
-- ARGV 1 channel, 2 all or none (1) or those that there are (0), 3… the permits' ids
-- reply: {how many of them were given back before their leases ended, 1 + how many subscribers
--        heard of it; 0: there was nothing to tell; -1: not known}
--
-- A permit with an ended lease that no script has found so far is given back, too, and not counted.
local live = {}
for at, ends in ipairs(redis.call('zmscore', KEYS[2], unpack(ARGV, 3))) do
    if is_ahead(ends) then
        live[#live + 1] = ARGV[at + 2]
    end
end
if ARGV[2] == '1' and #live < #ARGV - 2 then
    live = {}
end
local free = take_back(live)
if not free then
    return {0, 0}
end
local heard = tell_free(ARGV[1], free)
return {#live, type(heard) == 'number' and 1 + heard or -1}
