-- Makes a barrier, unless there is one.
--
-- KEYS 1 the barrier, 2 slot, 3 its parties
-- ARGV 1-4 as in once.lua, 5 how many parties trip it
-- reply: 1 = made, 0 = there is one
return once(function()
    if present() then
        return nil
    end
    check()
    local time = redis.call('time')
    local number = text(time[1] * 1000000 + time[2])
    return {'1', 'hset', barrier, 'parties', ARGV[5], 'generation', number, 'first', number}
end, function()
    redis.call('del', parties)
end)
