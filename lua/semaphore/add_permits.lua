-- Changes the number of permits by ARGV 5, which may be negative.
--
-- KEYS 1 the semaphore, 2 record, 3 its mark
-- ARGV 1-4 as in once.lua, 5 permits, 6 channel
-- reply: {1, mark}
return once(function()
    ensure_mark(stored(KEYS[1]))
    return {'1', 'incrby', KEYS[1], ARGV[5]}
end, function(free)
    publish_free(ARGV[6], free)
    return 1
end)
