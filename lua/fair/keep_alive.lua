-- Says that these waiters of one fair lock live, and finds out what nobody was told.
--
-- KEYS and ARGV 1 to 3: line.lua
-- ARGV 4.. owners
-- reply: {again, owner...}: again = ms after which this is worth sending once more, if that is
--        before the next period (-1: no); these owners ask for the lock now: the first in line of a
--        free lock, and those that are not in the queue (any more)
--
-- Each process sends it for all its waiters of a name at once, every third of the fair wait, and once
-- at least while a hand-over lasts: who was told may be stopped, and the reply tells the first in line
-- when that is over.
-- The scores (README.md), with base = now + Redisson's wait for each of its waiters ahead:
--   a live one of ours   base + fair wait: set, be that up or down
--   another one of ours  between base (dead) and base + fair wait: moved only if it is outside
--   one of Redisson's    behind ours it moves as the next of ours before it does: its own time does
--                        not pass while it waits for us. Behind none of ours it is not touched.
-- If the lock is free, it goes to the first in line. While it is held nobody is dropped.
local alive = {}
for i = 4, #ARGV do
    alive[ARGV[i]] = true
end

-- Without memory ZADD is refused even for a member that is there, unless the script has written. And
-- what is not allowed is found out before anything has changed.
redis.call('zrem', timeouts, '')
permit('zadd', timeouts, 'xx', 0, '')

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

local line = redis.call('lrange', queue, 0, -1)
local in_line = {}
-- Whether the set has as many members as the list: a last one, and none after it.
local last = redis.call('zrange', timeouts, math.max(#line - 1, 0), #line)
local mixed = #last ~= math.min(#line, 1)
for _, id in ipairs(line) do
    in_line[id] = true
    mixed = mixed or not ours(id)
end

-- Where all are ours, only the head's score is of interest.
local scores = {}
if mixed then
    local all = redis.call('zrange', timeouts, 0, -1, 'withscores')
    for i = 1, #all, 2 do
        scores[all[i]] = tonumber(all[i + 1])
        -- What is in the set and not in the list can never be served.
        if not in_line[all[i]] then
            redis.call('zrem', timeouts, all[i])
        end
    end
elseif line[1] then
    scores[line[1]] = tonumber(redis.call('zscore', timeouts, line[1]) or nil)
end

local moved = {}
local redissons, shift = 0, 0
for i, id in ipairs(line) do
    local score = scores[id]
    local new = score
    if not ours(id) then
        redissons = redissons + 1
        new = score and score + shift
    else
        local base = now() + REDISSON_WAIT * redissons
        if alive[id] then
            new = base + fair_wait
        elseif score then
            new = math.min(math.max(score, base), base + fair_wait)
        end
        shift = score and new - score or 0
    end
    if new ~= score then
        moved[#moved + 1] = string.format('%.0f', new)
        moved[#moved + 1] = id
    end
end
for i = 1, #moved, 1000 do
    redis.call('zadd', timeouts, unpack(moved, i, math.min(i + 999, #moved)))
end

local reply = {-1}
for i = 4, #ARGV do
    local id = ARGV[i]
    if (not in_line[id] and not (granted and id == head)) or left == -2 and id == head then
        reply[#reply + 1] = id
    end
end
if left >= 0 and (granted or line[1] and alive[line[1]]) then
    reply[1] = math.max(1, left)
elseif left == -2 and head and not alive[head] then
    reply[1] = math.max(50, (scores[head] or 0) - now())
end
return reply
