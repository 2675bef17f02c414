-- The script of a Redisson client whose wait has ended.
-- KEYS queue, timeouts; ARGV owner, wait.
local queue, timeouts = KEYS[1], KEYS[2]
local owner, wait = ARGV[1], tonumber(ARGV[2])
local line = redis.call('lrange', queue, 0, -1)
local at
for i, id in ipairs(line) do
    if at then
        redis.call('zincrby', timeouts, -wait, id)
    elseif id == owner then
        at = i
    end
end
redis.call('zrem', timeouts, owner)
redis.call('lrem', queue, 0, owner)
return nil
