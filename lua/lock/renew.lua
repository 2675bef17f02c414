-- Appended to cut.lua: renews many holds.
--
-- KEYS 1..n the locks; after them, for each hold that reads, the reader's timeout. The timeouts
-- must be listed. While a slot moves, the lock and the timeout may be at different servers, and a
-- cluster refuses the script only if both keys are listed.
-- ARGV 1 lease in ms (0: change nothing, only ask), 2 the longest lease that any thread has asked
--      for among these holds, in ms (0: not known). The reply reports a longer lease. If ARGV 2 is
--      negative, the script cuts a longer lease to -ARGV 2. 3..n+2 the owner of each lock. The
--      prefix `read ` means that the owner reads, so its timeout is renewed, too
--      (docs/read-write-lock.md). The prefix `want `, which comes before `read `, asks whether
--      others wait for the lock
-- reply: for each lock 1 = renewed, 2 = renewed, but the lease is longer than any thread asked for,
--        3 and 4 = as 1 and 2, and others wait, 0 = this owner does not have the lock, else the
--        server's refusal
--
-- A renewal raises a shorter lease. It keeps a longer lease, because a thread may have asked for
-- this lease. If a lease is longer than any thread asked for, the server's clock was set back. Such
-- a lease must be cut: if the holder's process died, the lock would stay taken until the lease
-- ended. The script does not cut the lease at once, because a request for a longer lease may have
-- overtaken this renewal on another connection. So the client first checks whether a thread asked
-- for a longer lease, and then requests the cut in another renewal. If the server refuses PTTL, the
-- lease does not change.
--
-- The script always writes. If a client waits for replicas, it waits for the writes of this
-- connection, and the longer lease may have been written over another connection. Each command runs
-- in a pcall, so a key of another type does not stop the renewal of the other locks.
local lease, longest = tonumber(ARGV[1]), math.abs(tonumber(ARGV[2]))
local may_cut = tonumber(ARGV[2]) < 0

-- Raises the time to live of a key to the lease. The second result: whether the time to live was
-- longer than any thread asked for.
local function raise(key)
    local left = redis.pcall('pttl', key)
    if type(left) ~= 'number' then
        return left
    end
    local is_too_long = longest > 0 and left > longest
    return redis.pcall('pexpire', key, math.max(left, lease)), is_too_long
end

-- Raises a reader's timeout, or creates it again if it has expired. The lock still has the reader's
-- field, so no writer has had the lock since the timeout expired.
local function raise_timeout(key, owner)
    local timeout = timeout_of(key, owner, 1)
    local reply, is_too_long = raise(timeout)
    if reply == 0 then
        reply = redis.pcall('set', timeout, 1, 'px', ARGV[1])
    elseif is_too_long and may_cut then
        redis.pcall('pexpire', timeout, longest)
    end
    return reply, is_too_long
end

-- Returns whether another owner waits for the lock: a redlatch process or a fair lock's thread in a
-- queue, or a Redisson client, which listens to the public channel. A queue or channel that the
-- script may not read is treated as empty. is_tagged: whether the name has a hash tag of its own,
-- and so its keys have another form.
local function is_wanted(key, is_read_write)
    local is_tagged = string.find(key, '{', 1, true)
    local name, separator = is_tagged and key or '{' .. key .. '}', is_tagged and '_tagged:' or ':'
    local queue = (is_read_write and 'redlatch_rwlock_queue' or 'redlatch_queue')
        .. separator .. name
    local fair = not is_read_write
        and redis.pcall('lrange', 'redisson_lock_queue:' .. name, 0, 0) or {}
    if redis.pcall('exists', queue) == 1 or fair[1] then
        return true
    end
    local public = (is_read_write and 'redisson_rwlock:' or 'redisson_lock__channel:') .. name
    local subscribers = redis.pcall('pubsub', 'numsub', public, public .. ':redlatch')
    return not refused(subscribers) and subscribers[2] > subscribers[4]
end

local replies = {}
for i = 1, #ARGV - 2 do
    local key, prefixes, owner = KEYS[i], string.match(ARGV[i + 2], '^(.-)([^ ]*)$')
    local asks_if_wanted = string.find(prefixes, 'want', 1, true)
    local is_reader = string.find(prefixes, 'read', 1, true)
    local reply = redis.pcall('hexists', key, owner)
    if reply == 1 and lease > 0 then
        local timeout, is_too_long
        if is_reader then
            timeout, is_too_long = raise_timeout(key, owner)
        end
        if refused(timeout) then
            reply = timeout
        else
            -- The lock's time to live may come from another reader's lease, so only this reader's
            -- timeout shows whether its lease is too long.
            local lock_is_too_long
            reply, lock_is_too_long = raise(key)
            is_too_long = is_too_long or not is_reader and lock_is_too_long
            if is_too_long and reply == 1 then
                if may_cut then
                    cut(key, owner, longest)
                else
                    reply = 2
                end
            end
        end
    end
    if asks_if_wanted and (reply == 1 or reply == 2)
        and is_wanted(key, is_reader or string.sub(owner, -6) == ':write') then
        reply = reply + 2
    elseif type(reply) == 'table' then
        reply = string.find(reply.err, 'WRONGTYPE') and 0 or reply.err
    end
    replies[i] = reply
end
return replies
