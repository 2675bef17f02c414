-- Sets the number of free permits, and makes the semaphore if there is none.
--
-- KEYS 1 the semaphore, 2 record, 3 its mark
-- ARGV 1-4 as in once.lua, 5 permits, 6 channel
-- reply: {1, mark}
return once(function()
    -- If the key holds data of another type, `stored` ends the script with the server's error.
    ensure_mark(stored(KEYS[1]))
    return {'1', 'set', KEYS[1], ARGV[5], 'keepttl'}
end, function()
    publish_free(ARGV[6], ARGV[5])
    return 1
end)
