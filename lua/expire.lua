-- Sets or removes the time to live of a semaphore or latch.
--
-- KEYS 1 the semaphore or latch, 2 record, 3 its other key, if it has one: a semaphore's mark, or
--      an expirable semaphore's permits with the ends of their leases
-- ARGV 1-4 as in once.lua, 5 the time to live in ms, 0 for none, 6 1 = the other key is a sorted
--      set, and the semaphore exists even if only this set does
-- reply: 1 = done, 0 = there is none
local function expire_command(key)
    if ARGV[5] == '0' then
        return 'persist', key
    end
    return 'pexpire', key, ARGV[5]
end

return once(function()
    local taken = ARGV[6] == '1' and redis.call('zcard', KEYS[3]) > 0
    if not stored(KEYS[1]) and not taken then
        return nil
    end
    -- The script changes both keys or none. Before it changes KEYS 1, it checks that the user may
    -- run the command on KEYS 3. If not, the command itself returns the server's error.
    if KEYS[3] and not redis.acl_check_cmd(expire_command(KEYS[3])) then
        redis.call(expire_command(KEYS[3]))
    end
    return {'1', expire_command(KEYS[1])}
end, function()
    if KEYS[3] then
        redis.call(expire_command(KEYS[3]))
    end
    return 1
end)
