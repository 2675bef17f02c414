-- Takes a fair lock if nobody holds it and nobody waits for it. Does not queue.
--
-- KEYS and ARGV 1, 2: line.lua
-- ARGV 3 lease in ms, 4 owner
-- reply: 1 = taken (or held by this owner already), 0 = not
--
-- Waiters that cannot be alive any more are dropped and keep nobody out; if one is dropped and
-- another waits behind, that one is told.
local lease, owner = ARGV[3], ARGV[4]

local held_by, left, foreign = holder()
if foreign then
    return foreign
elseif held_by == owner then
    -- A copy that comes late cuts no lease that was made longer since.
    if left < tonumber(lease) then
        redis.call('pexpire', lock, lease)
    end
    return 1
elseif held_by then
    return 0
end

local head, dropped = living_head()
if head then
    if dropped then
        tell(head)
    end
    return 0
end
take(owner, lease, true)
return 1
