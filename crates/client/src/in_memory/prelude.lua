-- What Redis gives to its scripts. Receives the function that runs a command, and returns the one
-- that runs a script.
local command = ...

local function call(...)
    local reply = command(...)
    if type(reply) == 'table' and reply.err then
        error(reply, 0)
    end
    return reply
end

local function only(field)
    return function(text)
        return {[field] = field == 'err' and string.gsub(text, '^%-', '') or text}
    end
end

redis = {
    call = call,
    pcall = command,
    error_reply = only('err'),
    status_reply = only('ok'),
    -- There are no users here: each may run all.
    acl_check_cmd = function()
        return true
    end,
}

-- A script that takes a name for a global one has a bug.
local globals = _G
KEYS, ARGV = {}, {}
setmetatable(globals, {
    __index = function(_, name)
        error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
    end,
    __newindex = function(_, name)
        error("Script attempted to set the global variable '" .. tostring(name) .. "'", 2)
    end,
})

return function(script, keys, ...)
    local all, names, arguments = {...}, {}, {}
    for i = 1, keys do
        names[i] = all[i]
    end
    for i = keys + 1, #all do
        arguments[i - keys] = all[i]
    end
    globals.KEYS, globals.ARGV = names, arguments
    return pcall(script)
end
