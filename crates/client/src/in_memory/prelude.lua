-- What Redis gives to its scripts. Receives the functions that run a command of two, three, four and
-- of any number of parts, and returns two that run a script: with ten keys and arguments at most, and
-- with any number. (What a script costs here is mostly the way between Lua and Rust: fixed numbers of
-- texts take half as long.)
local two, three, four, any = ...

local function command(name, a, b, c, ...)
    if ... == nil and type(a) == 'string' then
        if b == nil then
            if c == nil then
                return two(name, a)
            end
        elseif type(b) == 'string' then
            if c == nil then
                return three(name, a, b)
            elseif type(c) == 'string' then
                return four(name, a, b, c)
            end
        end
    end
    return any(name, a, b, c, ...)
end

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

local function run_any(script, keys, ...)
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

local function run_ten(script, keys, a, b, c, d, e, f, g, h, i, j)
    if keys == 3 then
        globals.KEYS, globals.ARGV = {a, b, c}, {d, e, f, g, h, i, j}
    elseif keys == 4 then
        globals.KEYS, globals.ARGV = {a, b, c, d}, {e, f, g, h, i, j}
    else
        return run_any(script, keys, a, b, c, d, e, f, g, h, i, j)
    end
    return pcall(script)
end

return run_ten, run_any
