-- Records keep-alives of a client's waiters for one fair lock, and finds out whether a message was
-- lost.
--
-- KEYS and ARGV 1 to 3: queue.lua
-- KEYS 4 the last waiter of the queue at a time when the queue had only redlatch waiters
-- ARGV 4 1 = the server has answered this client's keep-alives for 2 s without a gap, otherwise
--      0, 5.. owners
-- reply: {again, first, owner...}: again = ms after which the next call is due, if that is sooner
--        than the usual period (otherwise -1); first = the owner that is first in the queue of a
--        free lock and must ask for it now, or ''; then those owners that have no entry
--
-- Each process sends this script for all its waiters of a name at once, at every third of the fair
-- wait. If a lease was granted by message, each process also sends this script at least once during
-- that lease, because the process that got the grant may be stopped. The reply tells the first
-- waiter's process when that lease ends.
--
-- The new scores (docs/fair-lock.md). `base` is now + Redisson's wait for each Redisson waiter that
-- is ahead of the entry:
--   an owner in ARGV             base + fair wait
--   another redlatch waiter      its old score, raised to base if it was lower, and lowered to
--                                base + fair wait if it was higher
--   a Redisson waiter            changes by as much as the score of the nearest redlatch waiter
--                                ahead, so the Redisson waiter's time does not run in the meantime.
--                                If no redlatch waiter is ahead, the score does not change.
-- The script sets each score anew. (Redisson's scripts add to scores at each grant. These sums
-- drift, and then Redisson drops live waiters.)
--
-- If a long queue has only redlatch waiters, the script does not read the queue, and only sets the
-- scores of the owners in ARGV. KEYS 4 names the last waiter of a moment at which the queue had
-- only redlatch waiters. Redisson's waiters enter only at the end. So if no Redisson waiter is
-- behind this waiter now, the queue still has only redlatch waiters.
--
-- If a redlatch waiter has sent no keep-alive for two seconds while the server answered others, the
-- script sets its score to its base. When the lock becomes free, a script drops this waiter as
-- dead. Until then the waiter keeps its entry, and its next keep-alive raises its score again. If
-- the process that sends this request was silent, too, the script lowers no score: the server may
-- have stood still, or its clock may have been set forward. The script hands a free lock to the
-- first waiter. While the lock is held, the script drops no waiter.
local SILENT_AFTER = 2000
-- If a queue is longer than SHORT_QUEUE, the script reads the whole queue only once in TRUST_FOR
-- ms, and in between only the last TAIL entries.
local SHORT_QUEUE, TAIL = 32, 16
local TRUST_FOR = 60000

local alive, own_scores = {}, {}
for i = 5, #ARGV do
    alive[ARGV[i]] = true
    own_scores[#own_scores + 1] = now() + fair_wait
    own_scores[#own_scores + 1] = ARGV[i]
end

-- A server that is out of memory refuses a ZADD even if it only changes a score, unless the script
-- has already written. So a ZREM, which removes nothing, comes before the ZADD. Both commands also
-- test the user's rights before the first change.
redis.call('zrem', timeouts, '')
require_right('zadd', timeouts, 'xx', 0, '')

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

-- Returns whether the queue has only redlatch waiters, each with a score.
local function only_ours()
    local last_known = redis.pcall('get', KEYS[4])
    if type(last_known) == 'string' then
        local entries = redis.call('lrange', queue, -TAIL, -1)
        for i = #entries, 1, -1 do
            if entries[i] == last_known then
                if i < #entries then
                    redis.pcall('set', KEYS[4], entries[#entries], 'keepttl')
                end
                return true
            elseif not is_ours(entries[i]) then
                return false
            end
        end
    end
    local entries = redis.call('lrange', queue, 0, -1)
    -- The set has as many members as the list if its last index is the list's last index.
    local last = redis.call('zrange', timeouts, math.max(#entries - 1, 0), #entries)
    local mixed = #last ~= math.min(#entries, 1)
    for _, id in ipairs(entries) do
        mixed = mixed or not is_ours(id)
    end
    -- Data of another type in KEYS 4 is not overwritten. If the user may not use KEYS 4, the script
    -- reads the whole queue each time.
    if #entries > SHORT_QUEUE and not mixed and type(last_known) ~= 'table' then
        redis.pcall('set', KEYS[4], entries[#entries], 'px', TRUST_FOR)
    end
    return not mixed
end
local all_ours = only_ours()

-- Whether this request may lower the score of a waiter that has sent no keep-alive.
local may_lower = ARGV[4] == '1' and fair_wait > SILENT_AFTER
if all_ours and may_lower then
    local silent, bases = redis.call('zrange', timeouts, '(' .. string.format('%.0f', now()),
        string.format('%.0f', now() + fair_wait - SILENT_AFTER), 'byscore', 'limit', 0, 1000), {}
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
        send_ask(head)
    end
end

local first, first_score
local reply = {-1, left == -2 and head and alive[head] and head or ''}
if all_ours and set_all(own_scores, 'xx', 'ch') == #ARGV - 4 then
    first = redis.call('lrange', queue, 0, 0)[1]
    first_score = first and tonumber(redis.call('zscore', timeouts, first) or nil)
    -- The score may still include time for Redisson waiters that have left.
    if first_score and first_score > now() + fair_wait then
        first_score = now() + fair_wait
        redis.call('zadd', timeouts, first_score, first)
    end
else
    local entries = redis.call('lrange', queue, 0, -1)
    local in_queue, scores = {}, {}
    for _, id in ipairs(entries) do
        in_queue[id] = true
    end
    local all = redis.call('zrange', timeouts, 0, -1, 'withscores')
    for i = 1, #all, 2 do
        scores[all[i]] = tonumber(all[i + 1])
        -- A waiter that is in the set and not in the list can never get the lock.
        if not in_queue[all[i]] then
            redis.call('zrem', timeouts, all[i])
        end
    end
    if may_lower then
        local redissons_ahead = 0
        for _, id in ipairs(entries) do
            if not is_ours(id) then
                redissons_ahead = redissons_ahead + 1
            elseif alive[id] and scores[id] then
                may_lower = scores[id] - now() - redisson_wait * redissons_ahead
                    >= fair_wait - SILENT_AFTER
                break
            end
        end
    end

    local changed_scores = {}
    local redissons, shift = 0, 0
    for i, id in ipairs(entries) do
        local score = scores[id]
        local new = score
        if not is_ours(id) then
            redissons = redissons + 1
            new = score and score + shift
        else
            local base = now() + redisson_wait * redissons
            if alive[id] then
                new = base + fair_wait
            elseif score and may_lower and redissons == 0
                and score < base + fair_wait - SILENT_AFTER
            then
                new = base
            elseif score then
                new = math.min(math.max(score, base), base + fair_wait)
            end
            shift = score and new - score or 0
        end
        if new ~= score then
            changed_scores[#changed_scores + 1] = string.format('%.0f', new)
            changed_scores[#changed_scores + 1] = id
        end
        scores[id] = new
    end
    set_all(changed_scores)
    first = entries[1]
    first_score = first and scores[first]
    for i = 5, #ARGV do
        if not in_queue[ARGV[i]] and not (granted and ARGV[i] == head) then
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
