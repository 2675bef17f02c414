-- Makes a semaphore if there is none.
--
-- KEYS 1 the semaphore, 2 record, 3 its mark
-- ARGV 1-4 as in once.lua, 5 permits, 6 channel, 7… `px` and the time to live in ms, if it has one
-- reply: {1, mark} = made, 0 = there is one
return once(function()
    -- If the key holds data of another type, `stored` ends the script with the server's error.
    if stored(KEYS[1]) then
        return nil
    end
    ensure_mark(false, unpack(ARGV, 7))
    return {'1', 'set', KEYS[1], ARGV[5], unpack(ARGV, 7)}
end, function()
    publish_free(ARGV[6], ARGV[5])
    return 1
end)
