-- This runs before every script of the model. It simulates the server's clock, times to live,
-- subscribers and refusals, so that hours pass in milliseconds. `sim:now` is the server's clock in
-- µs, `sim:ends` has the times when keys end, `sim:subscribers` the number of listeners of each
-- channel, `sim:patterns` the number of listeners of all channels, and `sim:full` says that there
-- is no memory.
local redis = (function(real)
    local time = tonumber(real.call('get', 'sim:now'))
    local ms = math.floor(time / 1000)
    local is_full, has_written = real.call('exists', 'sim:full') == 1, false
    local grows = {hset = true, hincrby = true, incrby = true, rpush = true, lpush = true, linsert = true,
        set = true}
    local writes = {
        hset = true, hincrby = true, incrby = true, rpush = true, lpush = true, set = true, del = true,
        linsert = true, lpop = true, lrem = true, pexpire = true, hdel = true,
    }

    local function mortal(key, ends)
        real.call('hset', 'sim:ends', key, string.format('%.0f', ends))
    end
    local function subscribers(channel)
        return tonumber(real.call('hget', 'sim:subscribers', channel) or 0)
    end
    local ends = real.call('hgetall', 'sim:ends')
    for i = 1, #ends, 2 do
        if tonumber(ends[i + 1]) < ms then
            real.call('del', ends[i])
            real.call('hdel', 'sim:ends', ends[i])
        end
    end

    local function refusal(command, ...)
        for i = 1, select('#', ...) do
            if select(i, ...) == nil then
                return 'ERR Lua redis lib command arguments must be strings or integers'
            end
        end
        if is_full and grows[command] and not has_written then
            return 'OOM command not allowed when used memory > maxmemory'
        end
    end
    local function simulated(call, command, key, ...)
        if command == 'time' then
            return {tostring(math.floor(time / 1000000)), tostring(time % 1000000)}
        elseif command == 'pexpire' then
            if real.call('exists', key) == 0 then
                return 0
            end
            if tonumber((...)) <= 0 then
                real.call('hdel', 'sim:ends', key)
                return real.call('del', key)
            end
            mortal(key, ms + tonumber((...)))
            return 1
        elseif command == 'pttl' then
            if real.call('exists', key) == 0 then
                return -2
            end
            local at = real.call('hget', 'sim:ends', key)
            return at and tonumber(at) - ms or -1
        elseif command == 'set' then
            local value, option, left = ...
            real.call('set', key, value)
            if option ~= 'keepttl' then
                real.call('hdel', 'sim:ends', key)
            end
            if left then
                mortal(key, ms + tonumber(left))
            end
            return {ok = 'OK'}
        elseif command == 'publish' then
            real.call('rpush', 'sim:messages', key, (...))
            return subscribers(key) + tonumber(real.call('get', 'sim:patterns') or 0)
        elseif command == 'pubsub' then
            local counts = {}
            for i = 1, select('#', ...) do
                counts[2 * i - 1], counts[2 * i] = select(i, ...), subscribers((select(i, ...)))
            end
            return counts
        end
        local reply = call(command, key, ...)
        if (command == 'del' or command == 'hdel' or command == 'lpop' or command == 'lrem')
            and real.call('exists', key) == 0 then
            real.call('hdel', 'sim:ends', key)
        end
        return reply
    end
    local function run(call, command, ...)
        local text = refusal(command, ...)
        if text and call == real.call then
            error(text)
        elseif text then
            return {err = text}
        end
        has_written = has_written or writes[command]
        return simulated(call, command, ...)
    end
    return {
        call = function(...) return run(real.call, ...) end,
        pcall = function(...) return run(real.pcall, ...) end,
        error_reply = real.error_reply,
        acl_check_cmd = real.acl_check_cmd,
    }
end)(redis)
