-- Stands before every script of a barrier.
--
-- KEYS first the barrier, last its parties
--
-- The barrier is a hash: how many `parties` trip it; the number of its `generation`, which began as
-- a time in µs, so that no other barrier of the name has the same; the `first` one from which on
-- each number was a generation; `before` that, the first and the last one of an earlier beginning;
-- and the last `broken` ones, between spaces. Without `parties` it was deleted, and says to late
-- parties for a while how their generation ended. The parties that have arrived are a sorted set:
-- party -> the end of its lease in ms since 1970. A generation ends once. It trips: the next number
-- begins. Or it breaks, and is the present one until a reset. (The one after a complete one, whose
-- action runs, may be broken before it begins.)
local barrier, parties = KEYS[1], KEYS[#KEYS]

-- The server's clock in µs.
local function micros()
    local time = redis.call('time')
    return time[1] * 1000000 + time[2]
end

-- The same in ms.
local function clock()
    return math.floor(micros() / 1000)
end

local function text(number)
    return string.format('%.0f', number)
end

-- The number of the present generation, nil if there is no barrier; and that of the last one.
local function present()
    local it = redis.call('hmget', barrier, 'generation', 'parties')
    local last = tonumber(it[1] or nil)
    return it[2] and last or nil, last
end

local function broken()
    return redis.call('hget', barrier, 'broken') or ' '
end

local function is_broken(number)
    return string.find(broken(), ' ' .. text(number) .. ' ', 1, true) ~= nil
end

-- The broken generations, this one included, or as many as are remembered: if each of many parties
-- resets a broken barrier, as many break at once, and one that missed a message asks seconds later.
local FULL = 256 * 17 + 1
local function broken_with(number)
    return string.sub(broken() .. text(number) .. ' ', -FULL)
end

-- Whether a party has not renewed its lease.
local function has_died()
    return redis.call('zcount', parties, '-inf', clock()) > 0
end

-- Fails before the first change if the last one would be refused.
local function check()
    for _, command in ipairs({
        {'hget', barrier, ''}, {'hset', barrier, '', ''}, {'hdel', barrier, ''},
        {'pexpire', barrier, 1}, {'persist', barrier}, {'del', parties},
    }) do
        if not redis.acl_check_cmd(unpack(command)) then
            redis.call(unpack(command))
        end
    end
end

-- Lets the next command pass without memory: after a command that writes, memory is no reason to
-- refuse. A lease is renewed, and a generation ends, on a server without memory too.
local function make_room()
    redis.call('hdel', barrier, '')
end

-- How a generation went: 0 = it is the present one, 1 = it tripped, 2 = it is broken, 3 = it has
-- ended, and this server does not know how: a lost server began it, or it is older than the broken
-- ones that are remembered.
local function state(number)
    local now, last = present()
    if is_broken(number) or number == last and not now then
        return 2
    end
    local first, before = unpack(redis.call('hmget', barrier, 'first', 'before'))
    local from, to = string.match(before or '', '(%d+) (%d+)')
    local is_known = first and number >= tonumber(first)
        or from and number >= tonumber(from) and number < tonumber(to)
    local all = broken()
    if not is_known or number > last then
        return 3
    elseif number == last then
        return 0
    end
    return #all == FULL and number < tonumber(string.match(all, '%d+')) and 3 or 1
end

-- The fields of a barrier that begins anew with this number, broken or not, after its `last`
-- generation, which has not tripped.
local function anew(last, number, begins_broken)
    return 'generation', text(number), 'first', text(number),
        'before', redis.call('hget', barrier, 'first') .. ' ' .. text(last),
        'broken', broken_with(last) .. (begins_broken and text(number) .. ' ' or '')
end

-- The generation of this number has ended. Without the right to publish, the parties find out by
-- their next look.
local function ended(channel, number)
    redis.call('del', parties)
    redis.pcall('publish', channel, text(number) .. ' ' .. state(number))
end

-- Breaks a generation, unless it has ended.
local function break_up(channel, number)
    if state(number) == 0 then
        check()
        make_room()
        redis.call('hset', barrier, 'broken', broken_with(number))
        ended(channel, number)
    end
end
