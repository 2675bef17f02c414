-- Stands before every script of a request for permits or counts. Such a request names no owner that
-- would show whether it was applied. So it has a number, and the server applies each number once.
--
-- KEYS 1 the semaphore or latch, 2 the record of the request's sequence
-- ARGV 1 number of the request, 2 the latest time at which it may be applied, in ms since 1970 on
--      the server's clock, 3 how long to remember it in ms, 4 the number of the sequence's last
--      change before this request, 0 if there is none; with a minus before that number if this
--      request is a copy, sent after the connection broke
-- reply: that of the script; or {now}: too late, and this request changed nothing; or {now, last}:
--        the server lacks the change before this request, and has the sequence's requests up to
--        `last`
--
-- A client has one open request at a time in each of its sequences. The numbers of a sequence only
-- rise. The record holds the last request with its result: `8=1`, or `8=1=mark` for a semaphore
-- (semaphore/mark.lua).
--
-- Why a request is applied only once: say that it was applied at the time t. The record keeps it
-- until t + memory (ARGV 3), or until a later request of the sequence, which the client sends only
-- after it has closed this one. The server may read any number of copies, at any time and in any
-- order. A copy whose number is in the record gets the same reply. A copy that finds a later
-- request in the record is refused. A copy that finds no record comes after t + memory, and so
-- after its own latest time: it is refused as well.
--
-- A server that became the master has the changes of the old master up to some point. So it has all
-- changes of a sequence up to the one in the record, and no later change. If it applied a newer
-- request first, nobody could see that older changes are missing. So a request names the change
-- before it, and is refused until that change was made again (semaphore/mend.lua).
local number, latest = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('time')
local now = time[1] * 1000 + time[2] / 1000 -- with a fraction
local known = redis.call('get', KEYS[2]) or '0=0'
local last, result, seen = string.match(known, '^(%d+)=(-?%d+)=?(.*)$')
last = tonumber(last)

-- The mark of the changed number, if the number has one.
local mark = ''

-- Returns the reply to a request that must not be applied: it is late, or the server lacks the
-- change before it. A request that could arrive after its record has expired is refused, too: its
-- client does not know the server's clock, and gets it from the reply.
local function refusal()
    if last > number or now > latest or latest > now + ARGV[3] - 1000 then
        return {now}
    elseif last < math.abs(ARGV[4]) then
        return {now, last}
    end
end

local function remember(text)
    return redis.call('set', KEYS[2], text, 'px', ARGV[3])
end

-- Makes a reply from a result and its mark. A result from 2^53 on stays text, since a Lua number
-- cannot have so many digits.
local function answer(outcome, its_mark)
    local count = tonumber(outcome)
    count = math.abs(count) < 2 ^ 53 and count or outcome
    return its_mark == '' and count or {count, its_mark}
end

-- Makes the one change of a script. The function first writes the result to the record. If the
-- server refuses that, nothing is changed. If the server refuses the change, the function restores
-- the old record.
local function change(outcome, ...)
    remember(ARGV[1] .. '=' .. outcome .. (mark == '' and '' or '=' .. mark))
    local reply = redis.pcall(...)
    local refused = type(reply) == 'table' and reply.err
    if refused then
        remember(known)
    end
    return reply, refused
end

-- Applies a request. `wanted` returns the result and the command that makes the change. If there is
-- nothing to change, `wanted` returns only a result, or nothing for the result 0. The record gets
-- such a result only from a copy, since the first request may still arrive after it. `told` turns
-- the command's reply into the reply to the first request. A copy gets the result.
local function once(wanted, told)
    if last == number then
        return answer(result, seen)
    end
    local refused = refusal()
    if refused then
        return refused
    end
    local parts = wanted() or {'0'}
    if not parts[2] then
        if string.sub(ARGV[4], 1, 1) == '-' then
            remember(ARGV[1] .. '=' .. parts[1])
        end
        return answer(parts[1], '')
    end
    local reply, failed = change(unpack(parts))
    if failed then
        return reply
    end
    return answer(told and told(reply) or parts[1], mark)
end
