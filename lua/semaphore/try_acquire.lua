-- Takes permits for the first of several threads of a client: for each all that it needs, in their
-- order, until there are not enough for the next. Where other clients wait, too, the first one gets
-- its own all the same, and those behind it what the client's share of the free permits covers.
--
-- KEYS 1 the semaphore, 2 slot
-- ARGV 1-4 as in once.lua, 5 how many clients share, 6… how many permits each thread needs
-- reply: how many were taken, 0 if there are not enough for the first
if last == number then
    -- Who waits for replicas waits for what this connection wrote: see ../lock/acquire.lua.
    remember(known)
end
return once(function()
    local free = stored(KEYS[1]) or 0
    local taken, limit = 0, free
    for at = 6, #ARGV do
        if taken + ARGV[at] > limit then
            break
        end
        taken = taken + ARGV[at]
        limit = math.max(taken, free / ARGV[5])
    end
    return taken > 0 and {taken, 'decrby', KEYS[1], taken}
end)
