-- Returns the owners of one client that hold these locks, or have an entry in their queues.
--
-- KEYS 1..n the locks
-- ARGV 1 the client's uuid
-- reply: for each lock the list of these owners
--
-- A new master may lack the last commands that the old master received. So it may have holds and
-- queue entries of owners that no thread uses any longer. The script changes nothing. If the user
-- may not read a queue, the reply treats the queue as empty. Each command runs in a pcall, as in
-- renew.lua. If a hash has more than MAX_OWNERS fields, the script treats it as another program's
-- data, even if it is a lock with many readers.
local MAX_OWNERS = 1000

-- Adds the client's owners in one queue of this lock to `reply`.
local function add_queued_owners(reply, lock, prefix)
    local queue = string.find(lock, '{', 1, true) and prefix .. '_tagged:' .. lock
        or prefix .. ':{' .. lock .. '}'
    local length = redis.pcall('llen', queue)
    for i = 0, type(length) == 'number' and math.min(length, MAX_OWNERS) - 1 or -1 do
        local owner = redis.pcall('lindex', queue, i)
        if type(owner) == 'string' and string.sub(owner, 1, 37) == ARGV[1] .. ':' then
            table.insert(reply, owner)
        end
    end
end

local replies = {}
for i, lock in ipairs(KEYS) do
    local fields = redis.pcall('hlen', lock)
    local owners = type(fields) == 'number' and fields <= MAX_OWNERS
        and redis.pcall('hkeys', lock) or {}
    replies[i] = {}
    for _, owner in ipairs(owners) do
        if string.sub(owner, 1, 37) == ARGV[1] .. ':' then
            table.insert(replies[i], owner)
        end
    end
    add_queued_owners(replies[i], lock, 'redlatch_queue')
    add_queued_owners(replies[i], lock, 'redlatch_rwlock_queue')
end
return replies
