-- Gives a lock to a ticket: an owner that belongs to no client becomes the holder, with a lease
-- that nobody renews.
--
-- KEYS see holder.lua
-- ARGV 1 the ticket's lease in ms, 2 owner, 3 the ticket's owner, 4 number of the database
-- reply: 1 = the ticket has the lock; nil = neither the owner nor the ticket has the lock;
--        WRONGTYPE = the key holds no lock
--
-- A request that is sent again finds that the ticket has the lock, and does not set the ticket's
-- lease again.
local lease, owner, ticket = ARGV[1], ARGV[2], ARGV[3]
database = ARGV[4]
local who, left, foreign = holder()
if foreign then
    return foreign
elseif who == owner then
    return succeed(owner, left, ticket, lease) or 1
end
ensure_master()
return who == ticket and 1
