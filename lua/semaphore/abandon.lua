-- Gives back what a request for permits took, if it took any, and sees to it that it takes none if
-- it arrives after this.
--
-- KEYS 1 the semaphore, 2 requests
-- ARGV 1 number of the request to abandon, 2-3 as in once.lua, 4 unused, 5 permits, 6 channel
-- reply: 1 = given back, 0 = nothing was taken
local known = redis.call('get', KEYS[2]) or ARGV[2]
local mark = ';' .. ARGV[1] .. '='
local from, to = string.find(known .. ';', mark .. '1;', 1, true)
local taken = from ~= nil
if taken then
    local free = redis.call('incrby', KEYS[1], ARGV[5])
    known = string.sub(known, 1, from - 1) .. mark .. '0' .. string.sub(known, to)
    if free > 0 then
        tell(ARGV[6], free)
    end
elseif not string.find(known, mark, 1, true) then
    known = known .. mark .. '0'
end
redis.call('set', KEYS[2], known, 'px', ARGV[3])
return taken and 1 or 0
