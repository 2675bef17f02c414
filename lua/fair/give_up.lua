-- Removes an owner from the queue of a fair lock, or releases the lock if the owner was granted it
-- meanwhile.
--
-- KEYS and ARGV 1 to 3: queue.lua
-- ARGV 4 owner, 5 1 = give up only the owner's entry and keep its hold, if it has one; otherwise 0
-- reply: 2 = the owner held the lock, which is released now, 1 = the owner's entry was removed, 0 =
--        the owner had no hold and no entry
--
-- The scores of the waiters behind this owner do not change, because they include no time for this
-- owner. If the lock is free now, the script hands it on: this owner may have held the lock, or a
-- Redisson release may have sent its message to this owner. A server that is out of memory refuses
-- none of these commands.
local owner, only_entry = ARGV[4], ARGV[5] == '1'

-- Each step has its own pcall: if one key holds data of another type, the owner must still be
-- removed from the other key.
local is_removed, entries = pcall(remove, owner)
local held = only_entry and 0 or redis.pcall('hdel', lock, owner)

if redis.pcall('exists', lock) == 0 then
    try_hand_on()
end
if not is_removed then
    return type(entries) == 'table' and entries or redis.error_reply(entries)
elseif type(held) == 'table' then
    return held
elseif held == 1 then
    return 2
end
return entries > 0 and 1 or 0
