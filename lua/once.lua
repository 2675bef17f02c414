-- Prepended to every script that changes permits or counts. A request to such a script names no
-- owner, so the server's data does not show whether the request was applied. Therefore each request
-- has a number, and the server applies each number once.
--
-- KEYS 1 the semaphore or latch, 2 the record of the request's sequence
-- ARGV 1 number of the request, 2 the latest time at which it may be applied, in ms since 1970 on
--      the server's clock, 3 how long to remember it in ms, 4 the number of the sequence's last
--      change before this request, 0 if there is none; with a minus before that number if this
--      request is a copy, sent after the connection broke
-- reply: that of the script; or {now}: too late, and this request changed nothing; or {now, last}:
--        the server lacks the change before this request, and has only the requests up to `last`
--
-- A client has one open request at a time in each of its sequences. The numbers of a sequence only
-- rise. The record is a key that holds the sequence's last request with its result: `8=1`, or
-- `8=1=mark` for a semaphore (semaphore/mark.lua).
--
-- Why a request is applied only once: suppose that the server applies request R at the time t. The
-- record keeps R until t + ARGV 3, or until a later request of the sequence. (The client sends a
-- later request only after it has closed R.) Copies of R may arrive in any number and at any time.
-- If the record has R's number, a copy of R gets the same reply. If the record has a later number,
-- the copy is refused. If the record has expired, the copy arrives after t + ARGV 3. This is after
-- R's latest time (ARGV 2), so the copy is refused as well.
--
-- A new master has the changes of the old master up to some point. So it has all changes of a
-- sequence up to the change in the record, and no later change. If the new master applied a new
-- request at this point, the record would no longer show that changes before this request are
-- missing. For this reason each request names the change before it. The server refuses the request
-- until the client has repeated that change (semaphore/mend.lua).
local number, latest = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('time')
local now = time[1] * 1000 + time[2] / 1000 -- with a fraction
local record = redis.call('get', KEYS[2]) or '0=0'
local recorded_number, recorded_result, recorded_mark =
    string.match(record, '^(%d+)=(-?%d+)=?(.*)$')
recorded_number = tonumber(recorded_number)

-- The mark of the changed number, if the number has one.
local mark = ''

-- Returns the reply to a request that must not be applied, otherwise nil. A request is refused in
-- three cases: it is late, the server lacks the change before it, or its latest time is so late
-- that a copy could arrive after the record has expired. In the last case the client reads the
-- server's time from the reply.
local function refusal()
    if recorded_number > number or now > latest or latest > now + ARGV[3] - 1000 then
        return {now}
    elseif recorded_number < math.abs(ARGV[4]) then
        return {now, recorded_number}
    end
end

local function remember(text)
    return redis.call('set', KEYS[2], text, 'px', ARGV[3])
end

-- Makes a reply from a result and its mark. A result of 2^53 or more stays a string, because a Lua
-- number would lose digits.
local function answer(outcome, its_mark)
    local count = tonumber(outcome)
    count = math.abs(count) < 2 ^ 53 and count or outcome
    return its_mark == '' and count or {count, its_mark}
end

-- Writes the result to the record, and then runs the one command that makes the script's change. If
-- the server refuses to write the record, nothing is changed. If the server refuses the command,
-- the function restores the old record.
local function change(outcome, ...)
    remember(ARGV[1] .. '=' .. outcome .. (mark == '' and '' or '=' .. mark))
    local reply = redis.pcall(...)
    local refused = type(reply) == 'table' and reply.err
    if refused then
        remember(record)
    end
    return reply, refused
end

-- Applies a request. `decide` returns the result and the command that makes the change. If there is
-- nothing to change, `decide` returns only a result, or nothing for the result 0. If nothing
-- changes, the result is written to the record only if this request is a copy: the first request
-- may arrive after its copy, and must then change nothing. `make_reply` computes the reply to the
-- first request from the command's reply. The reply to a copy is the result.
local function once(decide, make_reply)
    if recorded_number == number then
        return answer(recorded_result, recorded_mark)
    end
    local refused = refusal()
    if refused then
        return refused
    end
    local parts = decide() or {'0'}
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
    return answer(make_reply and make_reply(reply) or parts[1], mark)
end
