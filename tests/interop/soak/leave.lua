-- Records that a holder is about to leave. Notes an overlap if a writer has entered and left in the
-- meantime.
--
-- KEYS 1 the name of the lock; ARGV 1 the holder, 2 `read` or `write`, 3 how many holders may
-- write, 4 the reply of enter.lua, 5 the holder's side, 6 how long the holder had waited, in ms
-- reply: as that of enter.lua
local key, me, mode, limit, seen, side = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local turns = redis.call('get', key .. ':turns') or '0'
redis.call('zrem', key .. ':' .. mode, me)
if limit == '1' then
    if turns ~= seen then
        redis.call('rpush', 'overlaps', key .. ': a turn ended while ' .. me .. ' had it to ' .. mode)
    end
    if mode == 'write' then
        redis.call('set', key .. ':turns', turns + 1)
    end
end
redis.call('hincrby', key .. ':of', side, 1)
-- The time since the last turn ended.
local clock = redis.call('time')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local idle = now - (redis.call('get', key .. ':last') or now)
redis.call('set', key .. ':last', now)
if idle > tonumber(redis.call('get', key .. ':idle') or '0') then
    redis.call('set', key .. ':idle', idle)
end
if tonumber(ARGV[6]) > tonumber(redis.call('hget', key .. ':longest', side) or '0') then
    redis.call('hset', key .. ':longest', side, ARGV[6])
end
return turns
