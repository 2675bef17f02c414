-- Stands before every script of a request without an owner to ask for (permits, counts): such a
-- request carries a number and is applied once.
--
-- KEYS 1 the semaphore or latch, 2 the record of the request's sequence
-- ARGV 1 number of the request, 2 until when it may be applied, in ms since 1970 on the server's
--      clock, 3 how long to remember it in ms, 4 the sequence's last change before this request, 0
--      if there is none; with a minus before it if this is a copy, sent after the connection broke
-- reply: the script's own, or {now}: too late, this request changed nothing; or {now, last}: the
--        server does not know the change before this one, and knows the sequence's requests up to
--        `last`
--
-- A client has one open request at a time in each of its sequences, and a sequence remembers the
-- last one with its result: `8=1`, or `8=1=mark` of a semaphore (semaphore/mark.lua). A sequence's
-- numbers only rise. Why once: say that a request was applied at the time t. The sequence remembers
-- it until t + memory, or until a later request of the sequence, which the client does not send
-- before it is done with this one. The server may read another copy at any time, any number of
-- copies, and in any order. A copy finds itself remembered, and answers the same; or a later
-- request, and is refused; or nothing, but then it is past t + memory, and so past its own time,
-- and it is refused as well.
--
-- A server that became the master knows a beginning of the changes of the master before it, in
-- their order. So of a sequence it knows all changes up to the remembered one, and none after that:
-- a later request of the sequence is sent only when the one before it is done with. A request that
-- came first would hide the missing changes before it. So it names the change before it, and is
-- refused until that was made again (semaphore/mend.lua).
local number, latest = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('time')
local now = time[1] * 1000 + time[2] / 1000 -- with a fraction
local known = redis.call('get', KEYS[2]) or '0=0'
local last, result, seen = string.match(known, '^(%d+)=(-?%d+)=?(.*)$')
last = tonumber(last)

-- The mark of the number that is changed, if it has one.
local mark = ''

-- The reply to a request that must not be applied: it is late, or the server does not know the
-- change before it. A time so far off that the memory would not last until then is from a client
-- that does not know the server's clock; it learns it from the reply.
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

-- A result as a reply, with the mark: as text if a Lua number cannot have all its digits.
local function answer(outcome, its_mark)
    local count = tonumber(outcome)
    count = math.abs(count) < 2 ^ 53 and count or outcome
    return its_mark == '' and count or {count, its_mark}
end

-- Makes the one change of a script. Its result is remembered first: if that is refused, nothing is
-- changed, and if the change is refused, the result is taken back.
local function change(outcome, ...)
    remember(ARGV[1] .. '=' .. outcome .. (mark == '' and '' or '=' .. mark))
    local reply = redis.pcall(...)
    local refused = type(reply) == 'table' and reply.err
    if refused then
        remember(known)
    end
    return reply, refused
end

-- Applies a request. `wanted` returns its result, and the command that makes the change; or only a
-- result, or nothing for 0, if there is nothing to change: only a copy need remember that, for the
-- first may arrive after it. `told` is called with the command's reply; a result of its own is for
-- the first only.
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
