-- Which owners of one client have these locks.
--
-- KEYS 1..n the locks
-- ARGV 1 the client's uuid
-- reply: for each lock a list of those owners
--
-- It changes nothing. pcall for each, as in renew.lua. Many readers may have a lock, but a hash of
-- more fields than this is somebody's data.
local MOST = 1000

local replies = {}
for i, lock in ipairs(KEYS) do
    local fields = redis.pcall('hlen', lock)
    local owners = type(fields) == 'number' and fields <= MOST and redis.pcall('hkeys', lock) or {}
    replies[i] = {}
    for _, owner in ipairs(owners) do
        if string.sub(owner, 1, 37) == ARGV[1] .. ':' then
            table.insert(replies[i], owner)
        end
    end
end
return replies
