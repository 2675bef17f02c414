-- Prepended to every script of a barrier.
--
-- KEYS first the barrier, last its parties
--
-- The barrier is a hash with these fields:
--   parties     how many parties trip the barrier. A deleted barrier lacks this field. Its hash
--               remains for a while, so that late parties find out how their generation ended
--   generation  the number of the present generation. The first number was a time in µs, so no
--               other barrier of the same name has these numbers
--   first       the first number since the barrier last began anew
--   before      the first and the last number before the barrier last began anew
--   broken      the numbers of the last broken generations, between spaces
--
-- The parties that have arrived are a sorted set: party -> the end of the party's lease in ms since
-- 1970.
--
-- A generation ends once. If a generation trips, the generation with the next number begins. If a
-- generation breaks, it is the present generation until a reset. (While the action of a complete
-- generation runs, the next generation may break before it begins.)
local barrier, parties = KEYS[1], KEYS[#KEYS]

local function micros()
    local time = redis.call('time')
    return time[1] * 1000000 + time[2]
end

local function millis()
    return math.floor(micros() / 1000)
end

local function text(number)
    return string.format('%.0f', number)
end

-- Returns the number of the present generation, or nil if there is no barrier; and the number of
-- the last generation, which a deleted barrier also has.
local function present_generation()
    local fields = redis.call('hmget', barrier, 'generation', 'parties')
    local last = tonumber(fields[1] or nil)
    return fields[2] and last or nil, last
end

local function broken_numbers()
    return redis.call('hget', barrier, 'broken') or ' '
end

local function is_broken(number)
    return string.find(broken_numbers(), ' ' .. text(number) .. ' ', 1, true) ~= nil
end

-- Returns the field `broken` with this generation added, cut to its last MAX_LENGTH characters. The
-- field must have room for many numbers. If each of many parties resets a broken barrier, each
-- reset breaks one generation, and a party that missed a message asks only seconds later.
local MAX_LENGTH = 256 * 17 + 1
local function broken_numbers_with(number)
    return string.sub(broken_numbers() .. text(number) .. ' ', -MAX_LENGTH)
end

-- Returns whether the lease of any party has ended.
local function has_dead_party()
    return redis.call('zcount', parties, '-inf', millis()) > 0
end

-- Ends the script with the server's error if the user may not run one of the later commands.
local function check_rights()
    for _, command in ipairs({
        {'hget', barrier, ''}, {'hset', barrier, '', ''}, {'hdel', barrier, ''},
        {'pexpire', barrier, 1}, {'persist', barrier}, {'del', parties},
    }) do
        if not redis.acl_check_cmd(unpack(command)) then
            redis.call(unpack(command))
        end
    end
end

-- Runs a write that changes nothing. After a script's first write, a server that is out of memory
-- refuses none of the script's commands.
local function write_nothing()
    redis.call('hdel', barrier, '')
end

-- Returns the state of a generation: 0 = it is the present generation, 1 = it tripped, 2 = it is
-- broken, 3 = it has ended, but this server does not know how. State 3 means that the generation
-- began at a master that was lost, or is older than the oldest number in the field `broken`.
local function state(number)
    local present, last = present_generation()
    if is_broken(number) or number == last and not present then
        return 2
    end
    local first, before = unpack(redis.call('hmget', barrier, 'first', 'before'))
    local from, to = string.match(before or '', '(%d+) (%d+)')
    local is_known = first and number >= tonumber(first)
        or from and number >= tonumber(from) and number < tonumber(to)
    local numbers = broken_numbers()
    if not is_known or number > last then
        return 3
    elseif number == last then
        return 0
    end
    return #numbers == MAX_LENGTH and number < tonumber(string.match(numbers, '%d+')) and 3 or 1
end

-- Returns the fields of a barrier that begins anew with the generation `number`. `last`: the last
-- generation so far, which has not tripped.
local function fresh_fields(last, number, begins_broken)
    return 'generation', text(number), 'first', text(number),
        'before', redis.call('hget', barrier, 'first') .. ' ' .. text(last),
        'broken', broken_numbers_with(last) .. (begins_broken and text(number) .. ' ' or '')
end

-- Announces the end of a generation: removes its parties from the set, and publishes its state. If
-- the server refuses the message, each party reads the state when it next runs state.lua.
local function announce_end(channel, number)
    redis.call('del', parties)
    redis.pcall('publish', channel, text(number) .. ' ' .. state(number))
end

-- Breaks a generation if it has not ended.
local function break_up(channel, number)
    if state(number) == 0 then
        check_rights()
        write_nothing()
        redis.call('hset', barrier, 'broken', broken_numbers_with(number))
        announce_end(channel, number)
    end
end
