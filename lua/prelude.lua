-- Stands before every script of a lock or a condition except lock/renew.lua and lock/owners.lua:
-- the helpers for owners, the clock and refusals. A lock's short scripts (such as lock/free.lua)
-- stand before it.

-- The lease of a grant by message, in ms. The granted process may be stopped, so it gets its full
-- lease only after it has shown that it runs.
local PROVISIONAL = 2000

local function refused(reply)
    return type(reply) == 'table' and reply.err and reply or nil
end

-- Whether redlatch made this owner: its uuid is of version 8. (Redisson's are of version 4.)
local function is_ours(owner)
    return string.sub(owner, 15, 15) == '8'
end

-- The channel on which the process of `owner` gets messages.
local function own_channel(owner)
    return 'redisson_lock__channel:{redlatch:' .. string.sub(owner, 1, 36) .. '}'
end

-- Tells the process of `owner`, which has this lock, that somebody waits for the lock. An owner
-- whose process wants this message has flag 1 in its number (docs/wire.md), so the number is odd.
-- If the server refuses the message, the next renewal or look shows that somebody waits.
local function say_wanted(owner, database, lock)
    local number = string.match(owner, '^%d+', 38)
    if number and string.find(number, '[13579]$') and tonumber(number) >= 2^50 then
        redis.pcall('publish', own_channel(owner),
            'want ' .. number .. ' ' .. database .. ' ' .. lock)
    end
end

-- The server's clock in ms, read once for each run.
local time
local function now()
    if not time then
        local clock = redis.call('time')
        time = clock[1] * 1000 + math.floor(clock[2] / 1000)
    end
    return time
end

