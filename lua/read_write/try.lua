-- Takes a read-write lock if that is possible now, without a place in its queue. A free lock is taken
-- past the queue; beside readers nobody enters while somebody waits.
--
-- KEYS see ../hand_off.lua
-- ARGV 1 lease in ms, 2 owner, 3 the writer under whose hold it reads, or '', 4 number of the
--      database, if it is not 0
-- reply: as of ../lock/try.lua
local lease, owner, writer = ARGV[1], ARGV[2], ARGV[3]
database = ARGV[4] or 0
if now() == 0 then
    return redis.error_reply('NOPERM the right to TIME is missing')
end
local mode, _, foreign = mode_of()
if foreign then
    return foreign
elseif mode and redis.call('hexists', lock, owner) == 1 then
    if not writes(owner) then
        raise(timeout(owner, 1), lease)
    end
    raise(lock, lease)
    return -1 - length()
end
if mode == 'read' then
    -- Redisson's may have come in past readers in front; and those in front may be dead.
    look()
    if writes(owner) or length() > 0 then
        return nil
    end
elseif mode and (writer == '' or redis.call('hexists', lock, writer) == 0) then
    return nil
end
local trouble = hold(owner, lease)
if trouble then
    -- There is no memory. Who waits needs none: see `hold`.
    look()
    return trouble
elseif not writes(owner) then
    -- Readers in front enter with it.
    look()
end
return length()
