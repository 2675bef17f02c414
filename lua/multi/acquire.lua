-- Takes several locks of one kind, all or none. If another owner holds or waits for one of the
-- locks, the script takes none.
--
-- KEYS the locks, their queues, their windows, and their last fencing tokens if the locks have
--      tokens
-- ARGV 1 lease in ms, 2… the owner for each lock
-- reply: the number of the locks = all are taken; a list of last tokens = all are taken with these
--        tokens; nil = no lock is taken, because an owner of another client holds one of them; 0 =
--        no lock is taken for another reason, and the client asks for one lock after the other
--
-- The script checks all locks before it changes one, and takes no lock that has a queue or a
-- window. If the server refuses a command after the first change, the script frees the locks that
-- it has taken. These locks need no hand-off: they were taken only during this script, so no owner
-- is in their queues.
--
-- The request may be sent again. A lock that its owner already has counts as free, because the
-- first copy of the request has taken the lock. (The client counts the lease from the time before
-- it sent the first copy.)
--
-- Usually all locks are free. For this case the script makes no function and no table, because
-- these cost as much as the commands. (As in ../lock/free.lua, the names are local and the
-- arguments are strings.)
local redis, KEYS, ARGV = redis, KEYS, ARGV
local count, lease = #ARGV - 1, ARGV[1]
local writes = string.sub(ARGV[2], -6) == ':write'
-- The locks that the first copy has taken, or nil if it has taken none.
local had
if redis.pcall('exists', unpack(KEYS, 1, 3 * count)) ~= 0 then
    had = {}
    for i = 1, count do
        local lock, owner = KEYS[i], ARGV[i + 1]
        had[i] = redis.pcall('hexists', lock, owner) == 1
        if not had[i]
            and redis.pcall('exists', lock, KEYS[count + i], KEYS[2 * count + i]) ~= 0 then
            -- Tell the client if an owner of another client holds this lock. (An owner of this
            -- client is no reason: its release may be on the way over another connection.)
            local fields = redis.pcall('hrandfield', lock, 2)
            local held_by = fields[1]
            local is_taken = held_by and not fields[2]
                and string.match(held_by, '^[%x-]+:()%d+$') == 38
                and string.sub(held_by, 1, 36) ~= string.sub(owner, 1, 36)
                and redis.call('pttl', lock) >= 0
            return not is_taken and 0 or nil
        end
    end
end
-- A missing right to TIME must be reported even if there are no waiters (../read_write/free.lua).
if writes and not redis.acl_check_cmd('time') then
    return 0
end
local tokens = KEYS[3 * count + 1] and {}
for i = 1, count do
    local lock, owner, token = KEYS[i], ARGV[i + 1], 1024
    if tokens then
        token = redis.pcall('incrby', KEYS[3 * count + i], '1024')
        tokens[i] = token
    end
    local is_number = type(token) == 'number'
    if is_number and token < 1024 then
        -- Undo the INCRBY: the request for this lock alone refuses a negative value.
        redis.pcall('incrby', KEYS[3 * count + i], '-1024')
    end
    local is_taken = is_number and token >= 1024 and token < 2^53 and (had and had[i]
        or (writes and redis.pcall('hset', lock, 'mode', 'write', owner, '1')
            or redis.pcall('hset', lock, owner, '1')) == (writes and 2 or 1)
        and redis.pcall('pexpire', lock, lease) == 1)
    if not is_taken then
        for j = 1, i do
            if not (had and had[j])
                and type(redis.pcall('hdel', KEYS[j], ARGV[j + 1], 'mode')) ~= 'number' then
                redis.pcall('del', KEYS[j])
            end
        end
        return 0
    end
end
return tokens or count
