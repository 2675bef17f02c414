-- Releases a fair lock, and grants it to the first waiter if there is one.
--
-- KEYS and ARGV 1 to 3: queue.lua
-- ARGV 4 owner, 5.. owners that leave the queue, too: the followers to which this hold was passed,
--      and the owner itself if its request was sent again and the copy may have queued the owner
-- reply: nil = this owner does not have the lock; 1 = handed on; 0 = free, and if the first waiter
--        is Redisson's, it got a message; 5 = free, but the server refused that message
--
-- One HDEL checks the owner and deletes the lock. A server that is out of memory allows it. Before
-- the HDEL, the script checks that the user may run the later commands. The owner names one
-- acquisition, so a copy of the request gets nil.
local owner, entries = ARGV[4], first_entries()

-- WRONGTYPE: the key holds data of another type, so this owner does not have the lock.
local deleted = redis.pcall('hdel', lock, owner)
if type(deleted) == 'table' and not string.find(deleted.err, 'WRONGTYPE') then
    return deleted
end
local released = deleted == 1
if ARGV[5] then
    entries = nil
    pcall(function()
        local passed_count = #ARGV - 4
        local head_entries = redis.call('lrange', queue, 0, passed_count - 1)
        if table.concat(head_entries, ' ') == table.concat(ARGV, ' ', 5) then
            redis.call('zrem', timeouts, unpack(ARGV, 5))
            redis.call('ltrim', queue, passed_count, -1)
        else
            for i = 5, #ARGV do
                remove(ARGV[i])
            end
        end
    end)
end
if not released and redis.pcall('exists', lock) ~= 0 then
    return nil
end
local handed_on = try_hand_on(entries)
return released and handed_on or nil
