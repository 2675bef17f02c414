-- Takes permits for the first of several threads of a client (`share`).
--
-- KEYS 1 the semaphore, 2 record, 3 its mark
-- ARGV 1-4 as in once.lua, 5 how many clients share, 6… how many permits each thread needs
-- reply: {how many were taken, mark}; 0 = too few for the first thread, -1 = there is no such
--        semaphore (a request that was sent again may get 0 from the record instead)
if recorded_number == number then
    -- This request was sent again. The script writes nevertheless, because the client may wait for
    -- replicas: see ../lock/acquire.lua.
    remember(record)
end
local free
local reply = once(function()
    free = stored(KEYS[1])
    local taken = share(free or 0, ARGV[5], 6, #ARGV)
    if taken == 0 then
        return nil
    end
    ensure_mark(true)
    local text = string.format('%d', taken)
    return {text, 'decrby', KEYS[1], text}
end)
return reply == 0 and free == false and -1 or reply
