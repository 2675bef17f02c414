-- Stands behind ../once.lua, before the scripts that change a semaphore's number: the mark of the
-- number.
--
-- KEYS 3 the mark; an expirable semaphore has none, since its permits have ids
--
-- A mark names one semaphore of a name: on a server without its data, or after a delete, the name
-- may have a new one. From the new semaphore no permits of the client are taken, and the client's
-- changes must not be made again there (mend.lua). The mark lies beside the number, and the reply
-- to each change has it. A script that makes the number sets a new mark, even if there is an old
-- one, since Redisson and older clients of ours remove the number alone. They also make numbers
-- without a mark: a script that changes such a number adds a mark.
if KEYS[3] then
    mark = redis.call('get', KEYS[3]) or ''
end

-- Makes sure that a number that is about to change has a mark. `exists`: whether there is a number.
-- `...`: the options of the number's SET. If no change follows the mark, it does no harm.
local function ensure_mark(exists, ...)
    if not KEYS[3] or exists and mark ~= '' then
        return
    end
    -- Differs from any other mark, also from the mark of the same request at a server that has lost
    -- its data.
    mark = table.concat({string.match(KEYS[2], '(%w+):%d+$'), ARGV[1], math.floor(now)}, ':')
    local left = exists and redis.call('pttl', KEYS[1]) or -1
    if left >= 0 then
        redis.call('set', KEYS[3], mark, 'px', math.max(left, 1))
    else
        redis.call('set', KEYS[3], mark, ...)
    end
end
