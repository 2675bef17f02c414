-- Stands behind cut.lua: renews many holds.
--
-- KEYS 1..n the locks; behind them, for each hold that reads, the reader's timeout. It must be
-- listed: while the slot moves to another server, the lock and the timeout may be at different
-- servers, and a cluster refuses the script only if both keys are listed.
-- ARGV 1 lease in ms (0: change nothing, only ask), 2 the longest lease that any thread has asked
--      for of these holds, in ms (0: not known). The reply shows which leases are longer; with a
--      minus before this number, the script cuts them to it. 3..n+2 the owner of each; with `read `
--      before it: the owner reads, and its timeout is renewed, too (docs/read-write-lock.md)
-- reply: for each lock 1 = renewed, 2 = renewed, and it lasts longer than any thread asked for, 0 =
--        this owner does not have it, else the server's refusal
--
-- A renewal raises a shorter lease and keeps a longer one, since a thread may have asked for that.
-- A lease longer than the longest requested one shows that the server's clock was set back. Such a
-- lease must be cut, or the lock would stay for all that time if its process died. The script does
-- not cut it at once: a request for a longer lease may have overtaken this renewal on another
-- connection. So the client checks, and then asks for the cut. If the server refuses PTTL, the
-- lease stays as it is.
--
-- The script always writes. A client that waits for replicas waits for the writes of its own
-- connection, and the longer lease may have been written on another one. Each command runs in a
-- pcall, so a lock overwritten with other data does not stop the renewal of the other locks.
local lease, longest = tonumber(ARGV[1]), math.abs(tonumber(ARGV[2]))
local cuts = tonumber(ARGV[2]) < 0

-- Raises the time to live of a key. The second result: whether it is longer than any thread asked
-- for.
local function raise(key)
    local left = redis.pcall('pttl', key)
    if type(left) ~= 'number' then
        return left
    end
    local is_long = longest > 0 and left > longest
    return redis.pcall('pexpire', key, math.max(left, lease)), is_long
end

-- Raises a reader's timeout. A lapsed timeout is made anew: the reader's field is still there, so
-- no writer has had the lock since.
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
            -- Another reader's lease may be the longer one, so only this reader's own timeout
            -- counts.
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
