-- Keeps these waiters of one fair lock alive, and detects lost messages.
--
-- KEYS and ARGV 1 to 3: line.lua
-- KEYS 4 the last waiter of a queue in which only ours were seen
-- ARGV 4 1 = the server has answered this client's signs of life without a gap for 2 s, otherwise
--      0, 5.. owners
-- reply: {again, first, owner...}: again = ms after which the next call is due, if it is due before
--        the next period (otherwise -1); first = the first in line of a free lock, which must ask
--        for it now, or ''; then the owners that have no entry
--
-- Each process sends this for all its waiters of a name at once, every third of the fair wait, and
-- at least once while a grant by message lasts: the granted waiter may be stopped, and the reply
-- tells the first in line when the grant ends.
-- The scores (docs/fair-lock.md), with base = now + Redisson's wait for each of its waiters ahead:
--   a live one of ours   base + fair wait: set, up or down
--   another one of ours  between base (dead) and base + fair wait: moved only if it is outside
--   one of Redisson's    moves as the nearest of ours ahead of it does: its own time does not pass
--                        while it waits for us. If none of ours is ahead, it is not touched.
-- The script sets scores and adds to none. Redisson's sums of waits drift, shift all waiters at
-- each grant, and let live waiters lapse.
--
-- A long queue of ours alone is not read: the script only sets the scores of the owners. Our
-- waiters come back to the head or enter at the end, Redisson's enter at the end. So a queue that
-- once had only ours still has only ours, if no waiter of Redisson's stands behind the waiter that
-- was the last one then.
--
-- A waiter of ours that was silent for two seconds, while the server answered others, gets its base
-- as score: if the lock is free, the waiter is skipped as dead. Until then it keeps its entry, and
-- its next sign of life revives it. But no silence counts if this process was silent itself: then
-- the server stood still, or its clock was set forward. A free lock goes to the first in line.
-- While it is held no waiter is dropped.
local SILENT = 2000
-- A queue longer than FEW is not read whole each time, but only its last END. For BELIEVED ms the
-- rest counts as ours alone.
local FEW, END = 32, 16
local BELIEVED = 60000

local alive, scores_of_mine = {}, {}
for i = 5, #ARGV do
    alive[ARGV[i]] = true
    scores_of_mine[#scores_of_mine + 1] = now() + fair_wait
    scores_of_mine[#scores_of_mine + 1] = ARGV[i]
end

-- Without memory the server refuses ZADD even for a member that is there, unless the script has
-- written before. And a missing right must show before anything has changed.
redis.call('zrem', timeouts, '')
permit('zadd', timeouts, 'xx', 0, '')

-- Sets the scores of these pairs, many at a time. Returns how many members changed.
local function set_all(pairs, ...)
    local changed = 0
    for i = 1, #pairs, 1000 do
        local options = {...}
        for j = i, math.min(i + 999, #pairs) do
            options[#options + 1] = pairs[j]
        end
        changed = changed + redis.call('zadd', timeouts, unpack(options))
    end
    return changed
end

-- Whether only ours stand in the queue, each with a score.
local function only_ours()
    local known = redis.pcall('get', KEYS[4])
    if type(known) == 'string' then
        local line = redis.call('lrange', queue, -END, -1)
        for i = #line, 1, -1 do
            if line[i] == known then
                if i < #line then
                    redis.pcall('set', KEYS[4], line[#line], 'keepttl')
                end
                return true
            elseif not is_ours(line[i]) then
                return false
            end
        end
    end
    local line = redis.call('lrange', queue, 0, -1)
    -- Whether the set has as many members as the list: it has a member at the list's last index,
    -- and no further one.
    local last = redis.call('zrange', timeouts, math.max(#line - 1, 0), #line)
    local mixed = #last ~= math.min(#line, 1)
    for _, id in ipairs(line) do
        mixed = mixed or not is_ours(id)
    end
    -- Other data under that key stays. Without the right to the key the whole queue is read each
    -- time.
    if #line > FEW and not mixed and type(known) ~= 'table' then
        redis.pcall('set', KEYS[4], line[#line], 'px', BELIEVED)
    end
    return not mixed
end
local all_ours = only_ours()

local judges = ARGV[4] == '1' and fair_wait > SILENT
if all_ours and judges then
    local silent, bases = redis.call('zrange', timeouts, '(' .. string.format('%.0f', now()),
        string.format('%.0f', now() + fair_wait - SILENT), 'byscore', 'limit', 0, 1000), {}
    for _, id in ipairs(silent) do
        if alive[id] then
            bases = {}
            break
        end
        bases[#bases + 1] = now()
        bases[#bases + 1] = id
    end
    set_all(bases, 'xx')
end

local left = redis.call('pttl', lock)
local head, granted
if left == -2 then
    head, granted = hand_on(alive)
    if granted then
        left = PROVISIONAL
    elseif head and not alive[head] then
        tell(head)
    end
end

local first, first_score
local reply = {-1, left == -2 and head and alive[head] and head or ''}
if all_ours and set_all(scores_of_mine, 'xx', 'ch') == #ARGV - 4 then
    first = redis.call('lrange', queue, 0, 0)[1]
    first_score = first and tonumber(redis.call('zscore', timeouts, first) or nil)
    -- The score may still hold time for waiters of Redisson's that are gone.
    if first_score and first_score > now() + fair_wait then
        first_score = now() + fair_wait
        redis.call('zadd', timeouts, first_score, first)
    end
else
    local line = redis.call('lrange', queue, 0, -1)
    local in_line, scores = {}, {}
    for _, id in ipairs(line) do
        in_line[id] = true
    end
    local all = redis.call('zrange', timeouts, 0, -1, 'withscores')
    for i = 1, #all, 2 do
        scores[all[i]] = tonumber(all[i + 1])
        -- A waiter in the set and not in the list can never be served.
        if not in_line[all[i]] then
            redis.call('zrem', timeouts, all[i])
        end
    end
    if judges then
        local before = 0
        for _, id in ipairs(line) do
            if not is_ours(id) then
                before = before + 1
            elseif alive[id] and scores[id] then
                judges = scores[id] - now() - redisson_wait * before >= fair_wait - SILENT
                break
            end
        end
    end

    local moved = {}
    local redissons, shift = 0, 0
    for i, id in ipairs(line) do
        local score = scores[id]
        local new = score
        if not is_ours(id) then
            redissons = redissons + 1
            new = score and score + shift
        else
            local base = now() + redisson_wait * redissons
            if alive[id] then
                new = base + fair_wait
            elseif score and judges and redissons == 0 and score < base + fair_wait - SILENT then
                new = base
            elseif score then
                new = math.min(math.max(score, base), base + fair_wait)
            end
            shift = score and new - score or 0
        end
        if new ~= score then
            moved[#moved + 1] = string.format('%.0f', new)
            moved[#moved + 1] = id
        end
        scores[id] = new
    end
    set_all(moved)
    first = line[1]
    first_score = first and scores[first]
    for i = 5, #ARGV do
        if not in_line[ARGV[i]] and not (granted and ARGV[i] == head) then
            reply[#reply + 1] = ARGV[i]
        end
    end
end
if left >= 0 and (granted or first and alive[first]) then
    reply[1] = math.max(1, left)
elseif left == -2 and head and not alive[head] then
    reply[1] = math.max(50, (first_score or 0) - now())
end
return reply
