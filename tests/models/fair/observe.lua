-- What there is after a step: holders, queue, timeouts, the lease's end, messages sent meanwhile.
-- KEYS lock, queue, timeouts.
local messages = redis.call('lrange', 'sim:messages', 0, -1)
redis.call('del', 'sim:messages')
if redis.call('exists', KEYS[1]) == 0 then
    redis.call('del', 'sim:ends')
end
return {
    redis.call('hkeys', KEYS[1]),
    redis.call('lrange', KEYS[2], 0, -1),
    redis.call('zrange', KEYS[3], 0, -1, 'withscores'),
    redis.call('get', 'sim:ends') or '',
    messages,
}
