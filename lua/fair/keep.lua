-- Shortens a fair hold that is kept for a while though no thread has it any more.
--
-- KEYS and ARGV 1 to 3: line.lua
-- ARGV 4 owner, 5 for how long it is kept from now on, in ms, 6.. the followers to which the hold
--      was passed: they leave the queue
-- reply: nil = not this owner's (any more); 0 = the owner keeps it for no longer than that
--
-- A copy of it never lengthens the lease: by then less is left. The first in line asks again, since
-- the end that it was told comes later.
local owner, rest = ARGV[4], tonumber(ARGV[5])
-- Also if nothing changes: a replica refuses it, since it may not know how the lock is held.
redis.call('zrem', timeouts, '')
for i = 6, #ARGV do
    leave(ARGV[i])
end
local held = redis.pcall('hexists', lock, owner)
if type(held) == 'table' and not string.find(held.err, 'WRONGTYPE') then
    return held
elseif held ~= 1 then
    return nil
elseif redis.call('pttl', lock) > rest then
    redis.call('pexpire', lock, rest)
    local line = redis.call('lrange', queue, 0, 0)
    if line[1] then
        pcall(tell, line[1])
    end
end
return 0
