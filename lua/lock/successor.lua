-- Stands behind owner.lua, before ticket.lua and adopt.lua: how an owner takes the place of another
-- one while the lock stays taken.

-- Makes `new` the owner in place of `old`, which has the lock for `left` ms, and gives it this
-- lease. Returns nil, or the server's refusal, after which nothing has changed.
--
-- The new field comes first. If the old one went first, the key would go with it: the lock would be
-- free if the server then refused the new field. The HSET is also the first write, so a server that
-- is out of memory refuses it. (For a moment the lock has two owners, but no other script runs in
-- between.)
local function succeed(old, left, new, lease)
    local trouble = denied('hdel', lock, '') or refused(redis.pcall('hset', lock, new, 1))
        or refused(redis.pcall('pexpire', lock, lease))
    if trouble then
        redis.pcall('hdel', lock, new)
        return trouble
    end
    redis.call('hdel', lock, old)
    if tonumber(lease) < left then
        -- The first in line knows only the old, later end.
        pcall(announce, lease)
    end
end

