-- Closes a latch that is open.
--
-- KEYS 1 the latch, 2 requests
-- ARGV 1-4 as in once.lua, 5 count, 6 channel
-- reply: 1 = closed, 0 = it has a count already
return once(function()
    if not redis.call('set', KEYS[1], ARGV[5], 'nx') then
        return false
    end
    tell(ARGV[6], '1')
    return 1
end)
