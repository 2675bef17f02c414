-- Sets the count of an open latch, which closes it.
--
-- KEYS 1 the latch, 2 record
-- ARGV 1-4 as in once.lua, 5 count, 6 channel, 7… `px` and the time to live in ms, if it has one
-- reply: 1 = closed, 0 = the latch already has a count
return once(function()
    -- If a Redisson client sets the count to zero, the key exists, but the latch is open.
    if (stored(KEYS[1]) or 0) > 0 then
        return nil
    end
    return {'1', 'set', KEYS[1], ARGV[5], unpack(ARGV, 7)}
end, function()
    -- If the server refuses the message, the count is set nevertheless.
    redis.pcall('publish', ARGV[6], '1')
    return 1
end)
