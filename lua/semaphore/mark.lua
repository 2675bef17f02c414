-- Prepended to the scripts that change a semaphore's number of free permits, after ../once.lua: the
-- mark of that number.
--
-- KEYS 3 the mark; an expirable semaphore has none, because its permits have ids
--
-- If a semaphore is deleted, or the server loses its data, a later semaphore of the same name has
-- another mark. So a client does not repeat its changes to the old semaphore at the new semaphore
-- (mend.lua). The mark has a key of its own, and the reply to each change contains it. A script
-- that makes the number sets a new mark, even if there is an old mark: Redisson and older versions
-- of redlatch remove only the number. If Redisson or an older client made the number, it has no
-- mark. The first script that changes this number adds a mark.
if KEYS[3] then
    mark = redis.call('get', KEYS[3]) or ''
end

-- Adds a mark to a number that has none and is about to change. `exists`: whether the number
-- exists. `...`: the options of the SET that will make the number. If no change follows, the mark
-- does no harm.
local function ensure_mark(exists, ...)
    if not KEYS[3] or exists and mark ~= '' then
        return
    end
    -- The time makes this mark different from the mark that the same request set at a server that
    -- has lost its data.
    mark = table.concat({string.match(KEYS[2], '(%w+):%d+$'), ARGV[1], math.floor(now)}, ':')
    local ttl = exists and redis.call('pttl', KEYS[1]) or -1
    if ttl >= 0 then
        redis.call('set', KEYS[3], mark, 'px', math.max(ttl, 1))
    else
        redis.call('set', KEYS[3], mark, ...)
    end
end
