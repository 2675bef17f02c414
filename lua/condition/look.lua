-- Says how it stands with a waiter, which lives. Passes on what was notified to the dead.
--
-- KEYS, ARGV 1 see waiters.lua
-- ARGV 2 waiter, 3 '1' = it does not want to wait any more
-- reply: 1 = it waits, or did until now; 0 = it does not: it was notified
if not redis.call('lpos', waiting, ARGV[2]) then
    local mine = redis.call('hget', notified, ARGV[2])
    if mine then
        record(ARGV[2], string.match(mine, '%S+$'))
    end
    return 0
end
if ARGV[3] == '1' then
    redis.call('lrem', waiting, 1, ARGV[2])
    return 1
end
redis.call('pexpire', waiting, KEPT)
local records = redis.call('hgetall', notified)
for i = 1, #records, 2 do
    local since, number = string.match(records[i + 1], '^(%d+) (%S+)$')
    -- (A time to come: the server's clock was set back.)
    if not since or math.abs(now() - since) > PATIENCE or not listens(records[i]) then
        -- Refused behind it, it would be passed on again at each look.
        redis.call('hdel', notified, '')
        local _, trouble = notify_first(number or '0')
        if trouble then
            break
        end
        redis.call('hdel', notified, records[i])
    end
end
return redis.call('lpos', waiting, ARGV[2]) and 1 or 0
