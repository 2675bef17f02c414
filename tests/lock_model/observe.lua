-- What there is after a step. KEYS lock, queue, window; stands behind simulated.lua.
-- reply: holders, the lock's time left, the queue and its time left, the window's, and the messages
-- that were sent meanwhile: channel, text, ...
local messages = redis.call('lrange', 'sim:messages', 0, -1)
redis.call('del', 'sim:messages')
return {
    redis.call('hkeys', KEYS[1]),
    redis.call('pttl', KEYS[1]),
    redis.call('lrange', KEYS[2], 0, -1),
    redis.call('pttl', KEYS[2]),
    redis.call('pttl', KEYS[3]),
    messages,
}
