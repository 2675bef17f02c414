-- Adopts a ticket: the adopter becomes the holder of the lock instead of the ticket.
--
-- KEYS see holder.lua
-- ARGV 1 lease in ms, 2 the adopter's owner, which has the number of the ticket's owner, 3 the
--      ticket's owner, 4 number of the database
-- reply: n >= 0: adopted, and n processes wait; n < 0: this adopter already had the lock, and
--        -1 - n processes wait; if the lock has tokens, {n, the last token of this hold}; nil = the
--        ticket does not have the lock, and this adopter does not have it; WRONGTYPE = the key
--        holds no lock
--
-- The request may be sent again, and its copy may arrive after the adopter has released the lock.
-- The copy does not take the lock again, because the script never takes a free lock.
local lease, owner, ticket = ARGV[1], ARGV[2], ARGV[3]
database = ARGV[4]
local held_by, left, type_error = holder()
if type_error then
    return type_error
elseif held_by == owner then
    -- The script writes in any case, for clients that wait for replicas: see acquire.lua.
    redis.call('pexpire', lock, left < tonumber(lease) and lease or left)
    return take_tokens() or granted_reply(-1 - length())
elseif held_by ~= ticket then
    ensure_master()
    return nil
end
local places = length()
return take_tokens() or replace_holder(ticket, left, owner, lease) or granted_reply(places)
