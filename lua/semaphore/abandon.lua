-- Gives back what a request for permits took, if it took any, and sees to it that it takes none if
-- it arrives after this.
--
-- KEYS 1 the semaphore, 2 slot
-- ARGV 1-3 as in once.lua, of the request to abandon, 4 unused, 5 channel
-- reply: 1 = given back, 0 = nothing was taken, {now} = not known any more,
--        {now, last} as in once.lua
if last ~= number then
    if is_late() then
        return {now}
    elseif is_behind() then
        return {now, last}
    end
    remember(ARGV[1] .. '=0')
    return 0
elseif result == '0' then
    return 0
end
local free, refused = change('0', 'incrby', KEYS[1], result)
if refused then
    return free
end
tell_free(ARGV[5], free)
return 1
