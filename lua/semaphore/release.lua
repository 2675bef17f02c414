-- Gives permits back and wakes waiters.
--
-- KEYS 1 the semaphore, 2 record, 3 its mark
-- ARGV 1-4 as in once.lua, 5 permits, 6 channel, 7 1 = only if the semaphore exists, 0 = in any
--      case
-- reply: {n, mark}: given back, and n - 1 subscribers heard of it; n = -1: the message was refused;
--        n = -2: the answer to a copy, since the number is not remembered; 0 = there is no such
--        semaphore
--
-- The message is the new value, or the highest int if that is less. A negative value makes
-- Redisson's clients fail, and 0 wakes none of them.
if last == number then
    -- A client that waits for replicas waits for the writes of this connection: see
    -- ../lock/acquire.lua.
    redis.pcall('set', KEYS[2], known, 'px', ARGV[3])
end
return once(function()
    local exists = stored(KEYS[1])
    if ARGV[7] == '1' and not exists then
        return nil
    end
    ensure_mark(exists)
    return {'-2', 'incrby', KEYS[1], ARGV[5]}
end, function(free)
    local heard = tell_free(ARGV[6], free)
    return type(heard) == 'number' and 1 + heard or -1
end)
