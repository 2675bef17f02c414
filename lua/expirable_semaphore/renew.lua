-- Renews many permits, of any semaphores.
--
-- KEYS 1..n for each permit the key of its semaphore's permits with the ends of their leases
-- ARGV 1 lease in ms (0: change nothing, only ask), 2 the longest requested lease of these permits,
--      as in ../lock/renew.lua (0: not known), 3..n+2 the id of each permit
-- reply: for each permit 1 = renewed, 2 = renewed, but the lease is longer than any thread asked
--        for, 0 = the permit is gone or its lease has ended, else the server's refusal
--
-- A lease that has ended is never raised, because the next request may give its permit to another
-- owner. If a lease became too long because the clock was set back, and ARGV 2 is negative, the
-- script cuts the lease (../lock/renew.lua). Each command runs in a pcall, so a key of another type
-- does not stop the renewal of the other permits.
local new_end, longest = now + ARGV[1], math.abs(tonumber(ARGV[2]))
local may_cut = tonumber(ARGV[2]) < 0

-- The function always writes: see ../lock/renew.lua. (ZADD with an unchanged score would not count
-- as a write.)
local function raise(key, ends, is_too_long, id)
    if ends < new_end then
        return redis.pcall('zadd', key, 'xx', new_end, id)
    elseif is_too_long and may_cut then
        return redis.pcall('zadd', key, 'xx', now + longest, id)
    end
    local reply = redis.pcall('zadd', key, 'xx', ends + 1, id)
    return type(reply) == 'table' and reply or redis.pcall('zadd', key, 'xx', ends, id)
end

local replies = {}
for i, key in ipairs(KEYS) do
    local ends = redis.pcall('zscore', key, ARGV[i + 2])
    local reply = 0
    if type(ends) == 'table' then
        reply = string.find(ends.err, 'WRONGTYPE') and 0 or ends.err
    elseif is_ahead(ends) then
        reply = 1
        if ARGV[1] ~= '0' then
            local is_too_long = longest > 0 and tonumber(ends) > now + longest
            -- The ZREM removes nothing. After it, a server that is out of memory does not refuse
            -- the ZADD.
            reply = redis.pcall('zrem', key, '')
            if type(reply) == 'number' then
                reply = raise(key, tonumber(ends), is_too_long, ARGV[i + 2])
            end
            reply = type(reply) == 'table' and reply.err or is_too_long and not may_cut and 2 or 1
        end
    end
    replies[i] = reply
end
return replies
