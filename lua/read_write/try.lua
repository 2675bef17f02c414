-- Takes a read-write lock if that is possible now, without an entry in its queue. It takes a free
-- lock past the queue; it enters beside readers only if there are no waiters.
--
-- KEYS see ../hand_off.lua
-- ARGV 1 lease in ms, 2 owner, 3 number of the database, if it is not 0 or 4 follows: the writer
--      under whose hold it reads
-- reply: as of ../lock/try.lua
local lease, owner, writer = ARGV[1], ARGV[2], ARGV[4]
database = ARGV[3] or 0
now()
local mode, _, foreign = mode_of()
if foreign then
    return foreign
elseif mode and redis.call('hexists', lock, owner) == 1 then
    return raise_hold(owner, lease) or -1 - length()
end
if mode == 'read' then
    -- Redisson's readers may have come in past readers at the head of the queue. Those at the head
    -- may be dead, and so may the present readers.
    if writes(owner) then
        outlived()
    end
    look()
    mode = mode_of()
end
if mode == 'read' and (writes(owner) or length() > 0)
    or mode == 'write' and (not writer or redis.call('hexists', lock, writer) == 0)
then
    return nil
end
-- (If the queue may not be read, nothing is taken.)
local _, trouble = length(), hold({owner}, lease)
if trouble then
    -- The server may have no memory. A waiter needs none: see `hold`.
    look()
    return trouble
elseif not writes(owner) then
    -- Readers at the head of the queue enter with this one.
    look()
end
return length()
