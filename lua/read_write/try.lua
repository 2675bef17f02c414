-- Takes a read-write lock if that is possible now, and makes no entry in its queue. The script
-- takes a free lock even if others wait. If readers hold the lock, another reader enters only if
-- there are no waiters.
--
-- KEYS see ../hand_off.lua
-- ARGV 1 lease in ms, 2 owner, 3 number of the database, if it is not 0 or if 4 follows, 4 the
--      writer under whose hold the owner reads
-- reply: see ../lock/try.lua
local lease, owner, writer = ARGV[1], ARGV[2], ARGV[4]
database = ARGV[3] or 0
now()
local mode, _, type_error = mode_of()
if type_error then
    return type_error
elseif mode and redis.call('hexists', lock, owner) == 1 then
    return raise_hold(owner, lease) or -1 - length()
end
if mode == 'read' then
    -- Redisson's readers may hold the lock while redlatch's readers are at the head of the queue.
    -- The first waiters and the present readers may be dead.
    if writes(owner) then
        free_if_all_dead()
    end
    grant_next()
    mode = mode_of()
end
if mode == 'read' and (writes(owner) or length() > 0)
    or mode == 'write' and (not writer or redis.call('hexists', lock, writer) == 0)
then
    return nil
end
-- (If the user may not read the queue, `length` fails, and nothing is taken.)
local _, refusal = length(), make_holders({owner}, lease)
if refusal then
    -- A server that is out of memory can still grant the lock to a waiter: see `make_holder` of
    -- ../lock/holder.lua.
    grant_next()
    return refusal
elseif not writes(owner) then
    -- Readers at the head of the queue enter with this reader.
    grant_next()
end
return length()
