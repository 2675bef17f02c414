-- Gives a fair lock back and tells the first in line.
--
-- KEYS and ARGV 1, 2: line.lua
-- ARGV 3 owner, 4.. the followers to whom this hold was passed meanwhile: they leave the queue, too
-- reply: nil = not this owner's (any more); else how many heard of it (-1: the message was refused)
--
-- One HDEL is the owner's check and the deletion. It is allowed without memory; what comes after it
-- may be refused and the lock is free all the same. The owner names one acquisition: sent again,
-- the request answers nil.
-- The clock is only asked if nobody listens for the head. Such a head may also be deaf for a moment
-- or listen at another node, so it is dropped only if its score has passed.
local owner = ARGV[3]

-- Something else that was written over the lock is not this owner's either.
local deleted = redis.pcall('hdel', lock, owner)
if type(deleted) == 'table' and not string.find(deleted.err, 'WRONGTYPE') then
    return deleted
end
local released = deleted == 1
if ARGV[4] then
    pcall(function()
        local passed = #ARGV - 3
        local front = redis.call('lrange', queue, 0, passed - 1)
        if table.concat(front, ' ') == table.concat(ARGV, ' ', 4) then
            redis.call('ltrim', queue, 0, -1)
            redis.call('zrem', timeouts, unpack(ARGV, 4))
            redis.call('ltrim', queue, passed, -1)
        else
            for i = 4, #ARGV do
                leave(ARGV[i])
            end
        end
    end)
end
if not released and redis.pcall('exists', lock) ~= 0 then
    return nil
end

local head = redis.pcall('lindex', queue, 0)
local heard = 0
if type(head) == 'string' then
    heard = tell(head)
    if heard == 0 then
        local found, living = pcall(living_head)
        if found and living and living ~= head then
            heard = tell(living)
        end
    end
end
if released then
    return heard
end
return nil
