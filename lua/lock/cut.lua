-- Prepended to renew.lua and keep.lua: shortens a lock's lease.

local function refused(reply)
    return type(reply) == 'table' and reply.err
end

local function timeout_of(key, owner, n)
    local prefix = string.find(key, '{', 1, true) and key or '{' .. key .. '}'
    return prefix .. ':' .. owner .. ':rwlock_timeout:' .. n
end

-- Shortens a lock's time to live to `to`, the lease of its owner. If a reader's timeout is longer,
-- the lock gets this longer time, so that no writer enters beside the reader. The lock keeps its
-- time to live in two cases: the server refuses to read a timeout, or another owner writes (only
-- the lock's time to live shows a writer's lease). Returns the new time to live, or nil if the lock
-- keeps its time to live.
local MAX_LEVELS = 1000
local function cut(key, owner, to)
    local fields = redis.pcall('hlen', key)
    local longest = fields == 1 and to or 0
    if longest == 0 then
        fields = redis.pcall('hgetall', key)
        if refused(fields) then
            return
        end
        for i = 1, #fields, 2 do
            local field = fields[i]
            if string.sub(field, -6) == ':write' then
                if field ~= owner then
                    return
                end
                longest = math.max(longest, to)
            elseif field ~= 'mode' then
                for n = math.min(tonumber(fields[i + 1]) or 0, MAX_LEVELS), 1, -1 do
                    local left = redis.pcall('pttl', timeout_of(key, field, n))
                    if refused(left) then
                        return
                    end
                    longest = math.max(longest, left)
                end
            end
        end
    end
    local left = redis.pcall('pttl', key)
    if longest > 0 and type(left) == 'number' and left > longest then
        redis.pcall('pexpire', key, longest)
        return longest
    end
end
