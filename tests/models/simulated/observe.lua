-- Returns the state after a step. KEYS lock, queue, window; runs after simulated.lua.
-- reply: mode, holders, the remaining time of each holder's longest timeout, that of the lock, the
-- queue and its remaining time, that of the window, the number of all timeouts, the scores of a
-- fair lock's waiters (its third key), and the messages since the last call: channel, text, ...
local messages = redis.call('lrange', 'sim:messages', 0, -1)
redis.call('del', 'sim:messages')
local holders, timeouts = {}, {}
local prefix = (string.find(KEYS[1], '{', 1, true) and KEYS[1] or '{' .. KEYS[1] .. '}') .. ':'
for _, field in ipairs(redis.call('hkeys', KEYS[1])) do
    if field ~= 'mode' then
        local longest = -2
        for i = tonumber(redis.call('hget', KEYS[1], field)), 1, -1 do
            local left = redis.call('pttl', prefix .. field .. ':rwlock_timeout:' .. i)
            longest = math.max(longest, left)
        end
        holders[#holders + 1], timeouts[#timeouts + 1] = field, longest
    end
end
return {
    redis.call('hget', KEYS[1], 'mode') or '',
    holders,
    timeouts,
    redis.call('pttl', KEYS[1]),
    redis.call('lrange', KEYS[2], 0, -1),
    redis.call('pttl', KEYS[2]),
    redis.call('pttl', KEYS[3]),
    #redis.call('keys', '*rwlock_timeout*'),
    redis.call('type', KEYS[3]).ok == 'zset' and redis.call('zrange', KEYS[3], 0, -1, 'withscores')
        or {},
    messages,
}
