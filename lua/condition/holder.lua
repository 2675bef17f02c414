-- Stands behind waiters.lua, before the scripts that only the owner of the lock may run.

local lock = KEYS[3]

-- Returns whether `owner` has the lock. If other data was written over the lock, it does not.
local function is_held_by(owner)
    local held = redis.pcall('hexists', lock, owner)
    if refused(held) and not string.find(held.err, 'WRONGTYPE') then
        return held
    end
    return held == 1
end

