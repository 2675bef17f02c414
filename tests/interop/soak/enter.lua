-- A holder comes in: notes an overlap.
--
-- KEYS 1 what is held; ARGV 1 the holder, 2 `read` or `write`, 3 how many may write, 4 when a lease that
-- is not renewed ends, in ms by this machine's clock; absent or 0: never
-- reply: how many turns of writers have ended
--
-- A holder that is killed leaves no word. Its entry ends before its lease can.
local LIFE = 1000
local key, me, mode, limit = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local clock = redis.call('time')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local ends = tonumber(ARGV[4] or '0')
local life = ends > 0 and math.min(LIFE, ends - now) or LIFE
-- It stood still past its lease, and another one may have come in since.
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
