-- Gives permits back and wakes waiters. Also gives back other permits whose leases have ended.
--
-- KEYS 1 the semaphore, 2 its permits with the ends of their leases
-- ARGV 1 channel, 2 1 = all of them or none, 0 = those that are still taken, 3… the permits' ids
-- reply: {how many of them were given back before their leases ended; 1 + how many subscribers got
--        the message, 0: no permit is free, so no message was sent, -1: not known}
--
-- The script also gives back permits whose leases had ended, but the first number does not count
-- them.
local live = {}
for at, ends in ipairs(redis.call('zmscore', KEYS[2], unpack(ARGV, 3))) do
    if is_ahead(ends) then
        live[#live + 1] = ARGV[at + 2]
    end
end
if ARGV[2] == '1' and #live < #ARGV - 2 then
    live = {}
end
local free = give_back(live)
if not free then
    return {0, 0}
end
local listeners = publish_free(ARGV[1], free)
return {#live, type(listeners) == 'number' and 1 + listeners or -1}
