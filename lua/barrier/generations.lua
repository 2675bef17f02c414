-- Stands before every script of a barrier.
--
-- KEYS first the barrier, last its parties
--
-- The barrier is a hash: how many `parties` trip it; the number of its `generation`, which began as
-- a time in µs, so that no other barrier of the name has the same; the `first` one of this barrier;
-- and the last `broken` ones, between spaces. The parties that have arrived are a sorted set:
-- party -> the end of its lease in ms since 1970. A generation ends once. It trips: the next number
-- begins. Or it breaks, and is the present one until a reset. (The one after a complete one, whose
-- action runs, may be broken before it begins.)
local barrier, parties = KEYS[1], KEYS[#KEYS]

-- The server's clock in ms.
local function clock()
    local time = redis.call('time')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function text(number)
    return string.format('%.0f', number)
end

-- The number of the present generation; nil if there is no barrier.
local function present()
    return tonumber(redis.call('hget', barrier, 'generation') or nil)
end

local function broken()
    return redis.call('hget', barrier, 'broken') or ' '
end

local function is_broken(number)
    return string.find(broken(), ' ' .. text(number) .. ' ', 1, true) ~= nil
end

-- The broken generations, this one included. Those of 64 resets ago are forgotten.
local function broken_with(number)
    return string.sub(broken() .. text(number) .. ' ', -64 * 17 - 1)
end

-- Whether a party has not renewed its lease.
local function has_died()
    return redis.call('zcount', parties, '-inf', clock()) > 0
end

-- Fails before the first change if the last one would be refused.
local function check()
    for _, command in ipairs({{'hset', barrier, '', ''}, {'del', parties}}) do
        if not redis.acl_check_cmd(unpack(command)) then
            redis.call(unpack(command))
        end
    end
end

-- How a generation went: 0 = it is the present one, 1 = it tripped, 2 = it is broken. (A number that
-- is not this barrier's is of one that was deleted or lost.)
local function state(number)
    local now = present()
    if not now or number > now or number < tonumber(redis.call('hget', barrier, 'first') or now)
        or is_broken(number)
    then
        return 2
    end
    return number < now and 1 or 0
end

-- The generation of this number has ended. Without the right to publish, the parties find out by
-- their next look.
local function ended(channel, number)
    redis.call('del', parties)
    redis.pcall('publish', channel, text(number) .. ' ' .. state(number))
end
