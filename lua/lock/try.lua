-- Takes a lock that is free, or this owner's already. Past the queue, and without a place in it.
--
-- KEYS, ARGV 1 and 2 see queue.lua
-- ARGV 3 lease in ms, 4 owner
-- reply: {1, places, now} = taken; {2, places, now} = it was this owner's already; {0} = not;
--        WRONGTYPE = what is there is no lock
local lease, owner = ARGV[3], ARGV[4]
if now() == 0 then
    return redis.error_reply('NOPERM the right to TIME is missing')
end
local who, left, foreign = holder()
if foreign then
    return foreign
elseif not who then
    local trouble = hold(owner, lease)
    if trouble then
        -- There is no memory. Who waits needs none: see `hold`.
        look()
        return trouble
    end
    return {1, length(), now()}
elseif who ~= owner then
    return {0}
end
if left < tonumber(lease) then
    redis.call('pexpire', lock, lease)
end
return {2, length(), now()}
