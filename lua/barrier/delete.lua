-- Removes a barrier. The waiting parties find the barrier broken.
--
-- KEYS 1 the barrier, 2 record, 3 its parties
-- ARGV 1-4 as in once.lua, 5 channel
-- reply: 1 = the barrier existed, 0 = there was no barrier
local number = present_generation()
return once(function()
    if not number then
        return nil
    end
    check_rights()
    return {'1', 'hdel', barrier, 'parties'}
end, function()
    redis.call('pexpire', barrier, 300000)
    announce_end(ARGV[5], number)
end)
