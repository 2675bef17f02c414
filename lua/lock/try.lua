-- Takes a lock that is free or that this owner already has. The script ignores the queue and adds
-- no entry to it.
--
-- KEYS see holder.lua
-- ARGV 1 lease in ms, 2 owner, 3 number of the database, if it is not 0
-- reply: n >= 0: taken, and n processes wait; n < 0: this owner already had it, and -1 - n
--        processes wait; if the lock has tokens, {n, the last token of this hold}; nil = not taken;
--        WRONGTYPE = the key holds no lock
local lease, owner = ARGV[1], ARGV[2]
database = ARGV[3] or 0
local held_by, left, type_error = holder()
if type_error then
    return type_error
elseif not held_by then
    local places, refusal = length(), make_holder(owner, lease)
    if refusal then
        -- A server that is out of memory can still grant the lock to a waiter: see `make_holder`.
        grant_next()
        return refusal
    end
    return granted_reply(places)
elseif held_by ~= owner then
    return nil
end
-- The script always writes, as in acquire.lua.
redis.call('pexpire', lock, left < tonumber(lease) and lease or left)
return take_tokens() or granted_reply(-1 - length())
