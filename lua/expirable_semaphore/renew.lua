-- Renews many permits, of whatever semaphores.
--
-- KEYS 1..n when the leases of a permit's semaphore end
-- ARGV 1 lease in ms (0: change nothing, only ask), 2..n+1 the id of each
-- reply: for each permit 1 = renewed, 0 = not there any more, else the server's refusal
--
-- It only raises, and never what has ended: that may be another's at the next request. pcall for
-- each, so that a key that something else was written over spoils no other.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local new = now + ARGV[1]

-- It always writes: see ../lock/renew.lua. (What is as it was would be no write.)
local function raise(key, ends, id)
    if ends < new then
        return redis.pcall('zadd', key, 'xx', new, id)
    end
    local reply = redis.pcall('zadd', key, 'xx', ends + 1, id)
    return type(reply) == 'table' and reply or redis.pcall('zadd', key, 'xx', ends, id)
end

local replies = {}
for i, key in ipairs(KEYS) do
    local ends = redis.pcall('zscore', key, ARGV[i + 1])
    local reply = 0
    if type(ends) == 'table' then
        reply = string.find(ends.err, 'WRONGTYPE') and 0 or ends.err
    elseif ends and tonumber(ends) > now then
        reply = 1
        if ARGV[1] ~= '0' then
            -- The first one takes nothing out, and lets the second one pass where there is no memory.
            reply = redis.pcall('zrem', key, '')
            if type(reply) == 'number' then
                reply = raise(key, tonumber(ends), ARGV[i + 1])
            end
            reply = type(reply) == 'table' and reply.err or 1
        end
    end
    replies[i] = reply
end
return replies
