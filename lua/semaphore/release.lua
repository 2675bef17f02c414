-- Gives permits back and wakes waiters.
--
-- KEYS 1 the semaphore, 2 record, 3 its mark
-- ARGV 1-4 as in once.lua, 5 permits, 6 channel, 7 1 = only if the semaphore exists, 0 = in any
--      case
-- reply: {n, mark}: given back, and n - 1 subscribers got the message; n = -1: the server refused
--        the message; n = -2: the reply to a request that was sent again, because the record does
--        not have the number of subscribers; 0 = there is no such semaphore
--
-- The message is the new number of free permits, at most the highest int. A negative number would
-- make Redisson's clients fail, and 0 would wake none of them.
if recorded_number == number then
    -- This request was sent again. The script writes nevertheless, because the client may wait for
    -- replicas: see ../lock/acquire.lua.
    redis.pcall('set', KEYS[2], record, 'px', ARGV[3])
end
return once(function()
    local exists = stored(KEYS[1])
    if ARGV[7] == '1' and not exists then
        return nil
    end
    ensure_mark(exists)
    return {'-2', 'incrby', KEYS[1], ARGV[5]}
end, function(free)
    local listeners = publish_free(ARGV[6], free)
    return type(listeners) == 'number' and 1 + listeners or -1
end)
