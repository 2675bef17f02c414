-- Begins to wait, for a thread that holds the lock and is about to leave it.
--
-- KEYS, ARGV 1 see waiters.lua
-- ARGV 2 owner, 3 waiter
-- reply: 1 = it stands among those who wait; 0 = the lock is not this owner's any more
--
-- Who notifies must have the lock, too. So nobody can between this and the release, and a copy that
-- comes after the release finds another owner and does nothing.
local held = is_held_by(ARGV[2])
if held ~= true then
    return held or 0
end
if not redis.call('lpos', waiting, ARGV[3]) then
    -- Refused before the push, where it would be refused behind it. It also makes room: after a
    -- command that writes, memory is no reason to refuse.
    local exists = redis.call('pexpire', waiting, KEPT)
    redis.call('rpush', waiting, ARGV[3])
    if exists == 0 then
        redis.call('pexpire', waiting, KEPT)
    end
end
return 1
