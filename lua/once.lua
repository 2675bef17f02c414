-- Stands before every script whose request has no owner that could be asked (permits, counts):
-- such a request carries a number and is applied once.
--
-- KEYS 1 the semaphore or latch, 2 what is known of this client's requests
-- ARGV 1 number of the request, 2 lowest number of the client that is not answered yet, 3 how long
--      to remember in ms, 4 whether this is a copy, sent after the connection broke (1) or not (0)
--
-- Known is a string: the floor, and for each later request its result: `7;8=1;9=0`. A copy finds
-- the result of the first; so does the first, if a stalled server reads it after the copy. Below
-- the floor every request was answered, so one that arrives now comes too late and does nothing.
-- A result of `false` means that nothing was done: only a copy need remember that, for the first
-- may arrive after it.
local function once(apply)
    local number, floor = tonumber(ARGV[1]), tonumber(ARGV[2])
    local known = redis.call('get', KEYS[2])
    local kept = ''
    if known then
        local lowest = tonumber(string.match(known, '^%d+'))
        if number < lowest then
            return redis.error_reply('STALE request ' .. ARGV[1] .. ' was answered before')
        end
        floor = math.max(floor, lowest)
        for other, result in string.gmatch(known, ';(%d+)=(-?%d+)') do
            if tonumber(other) == number then
                return tonumber(result)
            elseif tonumber(other) >= floor then
                kept = kept .. ';' .. other .. '=' .. result
            end
        end
    end
    local result = apply()
    if result or ARGV[4] == '1' then
        local remembered = string.format('%.0f', floor) .. kept .. ';' .. ARGV[1] .. '='
            .. string.format('%.0f', result or 0)
        redis.call('set', KEYS[2], remembered, 'px', ARGV[3])
    end
    return result or 0
end

-- The number under a key; none is zero. Something else there is the server's error.
local function value(key)
    local text = redis.call('get', key) or '0'
    return tonumber(text) or redis.call('incrby', key, 0)
end

-- Tells who waits. Without the right to publish the change stands all the same.
local function tell(channel, message)
    redis.pcall('publish', channel, message)
end
