-- Stands before every script of the model: its own clock, leases and messages instead of the
-- server's, so that hours pass in milliseconds. The key `sim:now` holds the time, `sim:patterns`
-- how many hear every channel.
local redis = (function(real)
    local function now()
        return tonumber(real.call('get', 'sim:now'))
    end
    local function simulated(call, command, key, ...)
        if command == 'time' then
            local ms = now()
            return {tostring(math.floor(ms / 1000)), tostring(ms % 1000 * 1000)}
        elseif command == 'pexpire' then
            if real.call('exists', key) == 0 then
                return 0
            end
            if tonumber((...)) <= 0 then
                return real.call('del', key)
            end
            real.call('set', 'sim:ends', string.format('%.0f', now() + tonumber((...))))
            return 1
        elseif command == 'pttl' then
            if real.call('exists', key) == 0 then
                return -2
            end
            local ends = real.call('get', 'sim:ends')
            return ends and math.max(0, tonumber(ends) - now()) or -1
        elseif command == 'publish' then
            real.call('rpush', 'sim:messages', key .. ' ' .. (...))
            return real.call('sismember', 'sim:listening', key)
                + tonumber(real.call('get', 'sim:patterns') or 0)
        elseif command == 'pubsub' then
            return {(...), real.call('sismember', 'sim:listening', (...))}
        end
        if key == nil then
            return call(command)
        end
        return call(command, key, ...)
    end
    return {
        call = function(...) return simulated(real.call, ...) end,
        pcall = function(...) return simulated(real.pcall, ...) end,
        error_reply = real.error_reply,
        acl_check_cmd = real.acl_check_cmd,
    }
end)(redis)
