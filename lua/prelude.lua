-- Prepended to every script of a lock or a condition except lock/renew.lua and lock/owners.lua:
-- helpers for owners, the clock and refusals. A lock's short scripts, such as lock/free.lua, come
-- before this file.

-- The lease of a grant by message, in ms. The process that gets the grant may be stopped, so it
-- gets its full lease only after it has sent a request.
local PROVISIONAL = 2000

local function refused(reply)
    return type(reply) == 'table' and reply.err and reply or nil
end

-- Returns whether redlatch made this owner: its uuid has version 8. (Redisson's uuids have version
-- 4.)
local function is_ours(owner)
    return string.sub(owner, 15, 15) == '8'
end

-- Returns the channel on which the process of `owner` gets messages.
local function own_channel(owner)
    return 'redisson_lock__channel:{redlatch:' .. string.sub(owner, 1, 36) .. '}'
end

-- Sends the process of `owner`, which has this lock, a message that another owner waits for the
-- lock. The owner's number is odd (flag 1, docs/wire.md) if the process wants this message. If the
-- server refuses the message, the process finds the waiter at its next renewal.
local function send_wanted(owner, lock)
    local number = string.match(owner, '^%d+', 38)
    if number and string.find(number, '[13579]$') and tonumber(number) >= 2^50 then
        redis.pcall('publish', own_channel(owner), 'want ' .. number .. ' ' .. lock)
    end
end

-- Returns the server's time in ms. A script reads it once.
local time
local function now()
    if not time then
        local clock = redis.call('time')
        time = clock[1] * 1000 + math.floor(clock[2] / 1000)
    end
    return time
end

