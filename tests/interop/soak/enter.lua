-- Records that a holder has entered. Notes an overlap with other holders.
--
-- KEYS 1 the name of the lock; ARGV 1 the holder, 2 `read` or `write`, 3 how many holders may
-- write, 4 the end of a lease that is not renewed, in ms on this machine's clock (0 or absent: no
-- end)
-- reply: how many turns of writers have ended
--
-- A killed holder does not call leave.lua. Its entry expires before its lease can.
local LIFE = 1000
local key, me, mode, limit = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local clock = redis.call('time')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local ends = tonumber(ARGV[4] or '0')
local life = ends > 0 and math.min(LIFE, ends - now) or LIFE
-- The holder stood still until its lease was over, and another holder may have entered in the
-- meantime.
if life <= 0 then
    return redis.call('get', key .. ':turns') or '0'
end
local inside = {read = 0, write = 0}
for which in pairs(inside) do
    redis.call('zremrangebyscore', key .. ':' .. which, 0, now)
    redis.call('zrem', key .. ':' .. which, me)
    inside[which] = redis.call('zcard', key .. ':' .. which)
end
if inside.write >= (mode == 'write' and limit or 1) or mode == 'write' and inside.read > 0 then
    local others, ages = redis.call('zrange', key .. ':write', 0, -1, 'withscores'), {}
    for i = 1, #others, 2 do
        ages[#ages + 1] = others[i] .. ' for ' .. now + LIFE - others[i + 1] .. ' ms'
    end
    redis.call('rpush', 'overlaps', key .. ': ' .. me .. ' came to ' .. mode .. ' beside '
        .. table.concat(ages, ', ') .. ' and ' .. inside.read .. ' readers')
end
redis.call('zadd', key .. ':' .. mode, now + life, me)
return redis.call('get', key .. ':turns') or '0'
