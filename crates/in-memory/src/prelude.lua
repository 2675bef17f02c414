-- The functions that Redis provides for its scripts. This file has two arguments. `of_name` is a
-- function that takes a command's name, and returns three functions that run the command with one,
-- two and three arguments. `any` is a function that runs a command with any number of parts. This
-- file returns two functions that run a script: one for at most ten keys and arguments, and one for
-- any number. Most of a script's time is spent between Lua and Rust, and a fixed number of strings
-- is passed in half the time.
local of_name, any = ...

-- The functions, by the commands' names.
local one, two, three = {}, {}, {}
for _, functions in ipairs({one, two, three}) do
    setmetatable(functions, {
        __index = function(_, name)
            one[name], two[name], three[name] = of_name(name)
            return functions[name]
        end,
    })
end

-- Redis's `call`, and its `pcall`, which returns errors.
local function calls(raises)
    return function(name, a, b, c, ...)
        local reply
        if type(a) ~= 'string' or ... ~= nil then
            reply = any(name, a, b, c, ...)
        elseif type(b) == 'string' then
            if c == nil then
                reply = two[name](a, b)
            elseif type(c) == 'string' then
                reply = three[name](a, b, c)
            else
                reply = any(name, a, b, c, ...)
            end
        elseif b == nil and c == nil then
            reply = one[name](a)
        else
            reply = any(name, a, b, c, ...)
        end
        if raises and type(reply) == 'table' and reply.err then
            error(reply, 0)
        end
        return reply
    end
end

local function only(field)
    return function(text)
        return {[field] = field == 'err' and string.gsub(text, '^%-', '') or text}
    end
end

-- The number of parts of each command, with its name. A negative number is a minimum.
local ARITY = {
    dbsize = 1, decr = 2, decrby = 3, del = -2, exists = -2, flushall = -1, flushdb = -1, get = 2,
    getrange = 4, hdel = -3, hexists = 3, hget = 3, hgetall = 2, hkeys = 2, hlen = 2, hmget = -3,
    hrandfield = -2, hset = -4, hvals = 2, incr = 2, incrby = 3, keys = 2, lindex = 3,
    linsert = 5, llen = 2, lpop = -2, lpos = -3, lpush = -3, lrange = 4, lrem = 4, ltrim = 4,
    persist = 2, pexpire = -3, pttl = 2, publish = 3, pubsub = -2, rpop = -2, rpush = -3, scan = -2,
    set = -3, time = 1, type = 2, unlink = -2, zadd = -4, zcard = 2, zcount = 4, zmscore = -3,
    zrange = -4, zrem = -3, zremrangebyscore = 4, zrevrange = -4, zscore = 3,
}

redis = {
    call = calls(true),
    pcall = calls(false),
    error_reply = only('err'),
    status_reply = only('ok'),
    -- This server has no users, so each command is allowed. Like the newest servers,
    -- `acl_check_cmd` fails if the command has too few arguments.
    acl_check_cmd = function(name, ...)
        local parts, arity = 1 + select('#', ...), ARITY[string.lower(name)]
        if not arity then
            error({err = 'ERR Invalid command passed to redis.acl_check_cmd()'}, 0)
        elseif arity < 0 and parts < -arity or arity >= 0 and parts ~= arity then
            error({err = 'ERR Wrong number of args for redis.acl_check_cmd()'}, 0)
        end
        return true
    end,
}

-- A script that uses an undefined global name has a bug.
local globals = _G
local names, arguments = {}, {}
KEYS, ARGV = names, arguments
setmetatable(globals, {
    __index = function(_, name)
        error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
    end,
    __newindex = function(_, name)
        error("Script attempted to set the global variable '" .. tostring(name) .. "'", 2)
    end,
})

local function run_any(script, keys, ...)
    local all, own_names, own_arguments = {...}, {}, {}
    for i = 1, keys do
        own_names[i] = all[i]
    end
    for i = keys + 1, #all do
        own_arguments[i - keys] = all[i]
    end
    globals.KEYS, globals.ARGV = own_names, own_arguments
    return pcall(script)
end

-- All scripts share the two tables, because making new tables would take as long as a command. No
-- script changes them.
local function run_ten(script, keys, a, b, c, d, e, f, g, h, i, j)
    local K, A = names, arguments
    K[1], K[2], K[3] = a, b, c
    if keys == 3 then
        K[4] = nil
        A[1], A[2], A[3], A[4], A[5], A[6], A[7] = d, e, f, g, h, i, j
    elseif keys == 4 then
        K[4] = d
        A[1], A[2], A[3], A[4], A[5], A[6], A[7] = e, f, g, h, i, j, nil
    else
        return run_any(script, keys, a, b, c, d, e, f, g, h, i, j)
    end
    globals.KEYS, globals.ARGV = K, A
    return pcall(script)
end

return run_ten, run_any
