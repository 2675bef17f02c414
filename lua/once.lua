-- Stands before every script whose request has no owner that could be asked (permits, counts):
-- such a request carries a number and is applied once.
--
-- KEYS 1 the semaphore or latch, 2 what is remembered of the request's slot
-- ARGV 1 number of the request, 2 until when it may be applied, in ms since 1970 on the server's
--      clock, 3 how long to remember it in ms, 4 whether this is a copy, sent after the connection
--      broke (1) or not (0); behind a colon the slot's last change before this request
-- reply: what the script says, or {now}: too late, nothing was changed by this; or {now, last}: the
--        server does not know the change before this one, and knows the slot's requests up to `last`
--
-- A client has one open request at a time in each of its slots, and a slot remembers the last one
-- with its result: `8=1`. A slot's numbers only rise. Once: say that a request was applied at the
-- time t. It is remembered until t + memory, or until a later one of its slot is, of which the
-- client sends none before it is done with this one. Another copy may be read whenever, however
-- many there are and in whatever order they come. Either it finds itself remembered, and answers
-- the same; or a later one, and is refused; or nothing, but then it is past t + memory, and so past
-- its own time, and it is refused as well.
--
-- A server that became the master knows the beginning of what the one before it did, in its order. So
-- of a slot it knows all changes up to the one it remembers, and none after that: a later request of
-- the slot is sent only when the one before it is done with. A request that came first would hide what
-- is missing before it. So it names the change before it, and is refused until that was made again
-- (semaphore/mend.lua).
local number, latest, memory = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local copy, before = string.match(ARGV[4], '^(%d):?(%d*)$')
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known = redis.call('get', KEYS[2]) or '0=0'
local last, result = string.match(known, '^(%d+)=(-?%d+)$')
last = tonumber(last)

-- Whether it must not be applied any more. A time so far off that the memory would not last until
-- then is a client's that knows nothing of the server's clock; it learns it from the reply.
local function is_late()
    return last > number or now > latest or latest > now + memory - 1000
end

-- Whether the server does not know the change before this request.
local function is_behind()
    return last < (tonumber(before) or 0)
end

local function remember(text)
    return redis.call('set', KEYS[2], text, 'px', ARGV[3])
end

-- What a request did, as a reply: as text where a number of Lua's does not have all its digits.
local function answer(outcome)
    local count = tonumber(outcome)
    return math.abs(count) < 2 ^ 53 and count or outcome
end

-- Makes the one change of a script. Its result is remembered first: if that is refused, nothing is
-- changed, and if the change is, that is taken back.
local function change(outcome, ...)
    remember(ARGV[1] .. '=' .. outcome)
    local reply = redis.pcall(...)
    local refused = type(reply) == 'table' and reply.err
    if refused then
        remember(known)
    end
    return reply, refused
end

-- Applies a request. `wanted` says what it is to answer, and the command that makes the change; or
-- nothing, if there is nothing to change: only a copy need remember that, for the first may arrive
-- after it. `told` is called with the command's reply; a result of its own is for the first only.
local function once(wanted, told)
    if last == number then
        return answer(result)
    elseif is_late() then
        return {now}
    elseif is_behind() then
        return {now, last}
    end
    local parts = wanted()
    if not parts then
        if copy == '1' then
            remember(ARGV[1] .. '=0')
        end
        return 0
    end
    local reply, refused = change(unpack(parts))
    if refused then
        return reply
    end
    return told and told(reply) or answer(parts[1])
end
