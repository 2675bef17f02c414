-- Prepended to the scripts that only the owner of the lock may run, after waiters.lua.

local lock = KEYS[3]

-- Returns whether `owner` has the lock. If the key holds data of another type, `owner` does not
-- have the lock.
local function is_held_by(owner)
    local held = redis.pcall('hexists', lock, owner)
    if refused(held) and not string.find(held.err, 'WRONGTYPE') then
        return held
    end
    return held == 1
end

