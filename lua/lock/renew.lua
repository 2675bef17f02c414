-- Stands behind cut.lua: renews many holds.
--
-- KEYS 1..n the locks; behind them, for each hold that reads, the reader's timeout: only so a
--      cluster says that the two are apart, while their slot is on its way to another server
-- ARGV 1 lease in ms (0: change nothing, only ask), 2 the longest lease that any thread has asked
--      for of these holds, in ms (0: not told): the reply tells of a longer lease; below zero, it
--      is cut to that, 3..n+2 the owner of each; `read ` before it: it reads, and its timeout is
--      renewed, too (docs/read-write-lock.md)
-- reply: for each lock 1 = renewed, 2 = renewed, and it lasts for longer than any thread asked for,
--        0 = not this owner's any more, else the server's refusal
--
-- A lease is raised, and a longer one stays: a thread may have asked for it. Only a server's clock
-- that was set back makes a lease longer than the longest requested one. That is cut, or the lock
-- of a process that dies would stay for so long. Not at once: a request for a longer lease may have
-- overtaken this one, over another connection. The client checks, and asks for the cut. If PTTL is
-- refused, the lease stays as it is. But the script always writes: a client that waits for replicas
-- waits for the writes of its own connection, and the longer lease was perhaps written on another.
-- pcall for each, so that a lock overwritten with other data spoils no other.
local lease, longest = tonumber(ARGV[1]), math.abs(tonumber(ARGV[2]))
local cuts = tonumber(ARGV[2]) < 0

-- The second: it lasts for longer than any thread asked for.
local function raise(key)
    local left = redis.pcall('pttl', key)
    if type(left) ~= 'number' then
        return left
    end
    local is_long = longest > 0 and left > longest
    return redis.pcall('pexpire', key, math.max(left, lease)), is_long
end

-- A timeout that has lapsed is made anew: while its field is there no owner has written, since
-- writing needs the lock free.
local function raise_timeout(key, owner)
    local timeout = timeout_of(key, owner, 1)
    local reply, is_long = raise(timeout)
    if reply == 0 then
        reply = redis.pcall('set', timeout, 1, 'px', ARGV[1])
    elseif is_long and cuts then
        redis.pcall('pexpire', timeout, longest)
    end
    return reply, is_long
end

local replies = {}
for i = 1, #ARGV - 2 do
    local key, owner = KEYS[i], ARGV[i + 2]
    local reads = string.sub(owner, 1, 5) == 'read '
    if reads then
        owner = string.sub(owner, 6)
    end
    local reply = redis.pcall('hexists', key, owner)
    if reply == 1 and lease > 0 then
        local timeout, is_long
        if reads then
            timeout, is_long = raise_timeout(key, owner)
        end
        if refused(timeout) then
            reply = timeout
        else
            -- Another reader's lease may make the lock last longer.
            local lasts_long
            reply, lasts_long = raise(key)
            is_long = is_long or not reads and lasts_long
            if is_long and reply == 1 then
                if cuts then
                    cut(key, owner, longest)
                else
                    reply = 2
                end
            end
        end
    end
    if type(reply) == 'table' then
        reply = string.find(reply.err, 'WRONGTYPE') and 0 or reply.err
    end
    replies[i] = reply
end
return replies
