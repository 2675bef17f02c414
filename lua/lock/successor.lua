-- Comes after owner.lua, before ticket.lua or adopt.lua: makes another owner the holder while the
-- lock remains taken.

-- Makes `new` the owner instead of `old`, and gives `new` this lease. `left`: the remaining lease
-- of `old`, in ms. Returns nil, or the server's refusal, after which nothing has changed.
--
-- The script writes the new field before it removes the old field. In the other order, the key
-- would disappear with the old field. If the server then refused the new field, the lock would be
-- free. The HSET is also the first write, so that a server that is out of memory refuses it. (For a
-- moment the lock has two owners, but no other script runs at that moment.)
local function replace_holder(old, left, new, lease)
    local refusal = denied('hdel', lock, '') or refused(redis.pcall('hset', lock, new, 1))
        or refused(redis.pcall('pexpire', lock, lease))
    if refusal then
        redis.pcall('hdel', lock, new)
        return refusal
    end
    redis.call('hdel', lock, old)
    if tonumber(lease) < left then
        -- The first waiter in the queue only knows the later end of the old lease.
        pcall(announce, lease)
    end
end

