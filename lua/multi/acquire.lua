-- Takes several locks of one kind, all or none. If another owner holds or waits for one of the
-- locks, the script takes none.
--
-- Comes after the function `one`, which takes a free lock without waiters: ../lock/free.lua or
-- ../read_write/free.lua.
--
-- KEYS for each lock, one after the other: the lock, the queue, the window, and the last fencing
--      token if the locks have tokens
-- ARGV 1 lease in ms, 2… the owner for each lock
-- reply: the list of the locks' replies (0 or above, as in ../lock/acquire.lua) = all are taken;
--        nil = no lock is taken, because an owner of another client holds one of them; 0 = no lock
--        is taken for another reason, and the client asks for one lock after the other
--
-- The script checks all locks before it changes one, and takes no lock that has a queue or a
-- window. If the server refuses a command after the first change, the script frees the locks that
-- it has taken. These locks need no hand-off: they were taken only during this script, so no owner
-- has queued for them.
--
-- The request may be sent again. A lock that its owner already has counts as free, because the
-- first copy of the request has taken the lock. (The client counts the lease from the time before
-- it sent the first copy.)
local all = #ARGV - 1
local size = #KEYS / all

local function keys_of(i)
    return {unpack(KEYS, (i - 1) * size + 1, i * size)}
end

-- Returns whether an owner of another client holds this lock. (An owner of this client does not
-- count: its release may be on the way over another connection.)
local function is_taken(lock, owner)
    local fields = redis.pcall('hrandfield', lock, 2)
    local who = fields[1]
    return who and not fields[2] and string.match(who, '^[%x-]+:()%d+$') == 38
        and string.sub(who, 1, 36) ~= string.sub(owner, 1, 36) and redis.call('pttl', lock) >= 0
end

-- Takes new tokens for a lock that the first copy has taken, and returns the lock's reply.
local function again(keys)
    local places, token = redis.call('llen', keys[2]), keys[4] and redis.call('incrby', keys[4], 1024)
    return token and {places, token} or places
end

local had, replies = {}, {}
for i = 1, all do
    local keys, owner = keys_of(i), ARGV[i + 1]
    if redis.pcall('exists', keys[1], keys[2], keys[3]) ~= 0 then
        had[i] = redis.pcall('hexists', keys[1], owner) == 1
        if not had[i] then
            return not is_taken(keys[1], owner) and 0 or nil
        end
    end
end
for i = 1, all do
    local _, reply = pcall(had[i] and again or one, keys_of(i), {ARGV[1], ARGV[i + 1]})
    if type(reply) ~= 'number' and (type(reply) ~= 'table' or reply.err) then
        for j = 1, i do
            if not had[j] then
                redis.pcall('del', keys_of(j)[1])
            end
        end
        return 0
    end
    replies[i] = reply
end
return replies
