-- Renews many holds.
--
-- KEYS 1..n the locks
-- ARGV 1 lease in ms (0: change nothing, only ask), 2..n+1 the owner of each
-- reply: for each lock 1 = renewed, 0 = not this owner's any more, else the server's refusal
--
-- It only raises: a hold may have a longer lease than the one asked for, and where that cannot be
-- asked (PTTL is refused) it is left as it is. But it always writes: whoever waits for replicas waits
-- for what its own connection wrote, and the longer lease was perhaps written on another. pcall for each, so that a lock that something else
-- was written over spoils no other.
local replies = {}
for i, key in ipairs(KEYS) do
    local reply = redis.pcall('hexists', key, ARGV[i + 1])
    if reply == 1 and ARGV[1] ~= '0' then
        reply = redis.pcall('pttl', key)
        if type(reply) == 'number' then
            reply = redis.pcall('pexpire', key, reply < tonumber(ARGV[1]) and ARGV[1] or reply)
        end
    end
    if type(reply) == 'table' then
        reply = string.find(reply.err, 'WRONGTYPE') and 0 or reply.err
    end
    replies[i] = reply
end
return replies
