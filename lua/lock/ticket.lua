-- Gives a lock to a ticket: an owner that belongs to no client becomes the holder, with a lease
-- that nobody renews.
--
-- KEYS see holder.lua
-- ARGV 1 the ticket's lease in ms, 2 owner, 3 the ticket's owner, 4 number of the database
-- reply: 1 = the ticket has the lock; nil = neither the owner nor the ticket has the lock;
--        WRONGTYPE = the key holds no lock
--
-- If the request is sent again, the ticket already has the lock, and the script does not set the
-- ticket's lease again.
local lease, owner, ticket = ARGV[1], ARGV[2], ARGV[3]
database = ARGV[4]
local held_by, left, type_error = holder()
if type_error then
    return type_error
elseif held_by == owner then
    return replace_holder(owner, left, ticket, lease) or 1
end
ensure_master()
return held_by == ticket and 1
