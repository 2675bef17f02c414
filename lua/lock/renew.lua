-- Renews many holds.
--
-- KEYS 1..n the locks; behind them, for each of them that is read, the reader's timeout: only so a
--      cluster says that the two are apart, while their slot is on its way to another server
-- ARGV 1 lease in ms (0: change nothing, only ask), 2..n+1 the owner of each; `read ` before it: it
--      reads, and its timeout is renewed, too (../read_write/README.md)
-- reply: for each lock 1 = renewed, 0 = not this owner's any more, else the server's refusal
--
-- It only raises: a hold may have a longer lease than the one asked for, and where that cannot be
-- asked (PTTL is refused) it is left as it is. But it always writes: whoever waits for replicas waits
-- for what its own connection wrote, and the longer lease was perhaps written on another. pcall for
-- each, so that a lock that something else was written over spoils no other.
local function refused(reply)
    return type(reply) == 'table' and reply.err
end

local function raise(key)
    local reply = redis.pcall('pttl', key)
    if type(reply) == 'number' then
        return redis.pcall('pexpire', key, reply < tonumber(ARGV[1]) and ARGV[1] or reply)
    end
    return reply
end

-- A timeout that has lapsed is made anew: while its field is there nobody has written, since writing
-- needs the lock free.
local function raise_timeout(key, owner)
    local prefix = string.find(key, '{', 1, true) and key or '{' .. key .. '}'
    local timeout = prefix .. ':' .. owner .. ':rwlock_timeout:1'
    local reply = raise(timeout)
    if reply == 0 then
        reply = redis.pcall('set', timeout, 1, 'px', ARGV[1])
    end
    return reply
end

local replies = {}
for i = 1, #ARGV - 1 do
    local key, owner = KEYS[i], ARGV[i + 1]
    local reads = string.sub(owner, 1, 5) == 'read '
    if reads then
        owner = string.sub(owner, 6)
    end
    local reply = redis.pcall('hexists', key, owner)
    if reply == 1 and ARGV[1] ~= '0' then
        local timeout = reads and raise_timeout(key, owner)
        reply = refused(timeout) and timeout or raise(key)
    end
    if type(reply) == 'table' then
        reply = string.find(reply.err, 'WRONGTYPE') and 0 or reply.err
    end
    replies[i] = reply
end
return replies
