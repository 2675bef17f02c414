-- Stands before the scripts that change a semaphore's number, behind ../once.lua: the number's mark.
--
-- KEYS 3 the mark. (None: an expirable semaphore's number, whose permits have ids.)
--
-- The number does not say whether it is still the semaphore that a client has changed, or one that
-- was made anew since, on a server without its data or after a delete. In that one the client's
-- permits are not out, and its changes must not be made again (mend.lua). So a number has a mark
-- beside it, which the reply to each change has, too. Who makes the number sets a new mark, also
-- over an old one: Redisson and older clients of ours remove the number alone. Who changes a number
-- without a mark, which they made, makes one.
if KEYS[3] then
    mark = redis.call('get', KEYS[3]) or ''
end

-- Stands before a change of the number, which `exists` or not. `...`: the options of its SET. A mark
-- for which no change follows is harmless.
local function ensure_mark(exists, ...)
    if not KEYS[3] or exists and mark ~= '' then
        return
    end
    -- Unlike any other, also that of the same request at a server that has lost its data.
    mark = table.concat({string.match(KEYS[2], '(%w+):%d+$'), ARGV[1], math.floor(now)}, ':')
    local left = exists and redis.call('pttl', KEYS[1]) or -1
    if left >= 0 then
        redis.call('set', KEYS[3], mark, 'px', math.max(left, 1))
    else
        redis.call('set', KEYS[3], mark, ...)
    end
end
