-- Appended to a script whose request is the first of its kind over a connection. This part checks
-- all rights that this kind of request needs, and then runs the script. Without this check, a user
-- without the right to publish could take a lock and be unable to release it. src/scripts/rights.rs
-- fills in the rows below. A row has the commands, then the text before and after the name in a key
-- or channel: two texts for names without a brace, then two for names with a brace.
--
-- `random`: a name that nobody uses; `script`: a function that runs the request
-- reply: NOPERM = the user lacks rights, and nothing was done; otherwise the script's error, or {1
--        = the user may use all names, 0 = only this one; the script's reply}
--
-- Each check has a complete argument list, because newer servers refuse to check a command with too
-- few arguments. `behind`: how many arguments follow the key.
local behind = {
    decrby = 1, getrange = 2, hdel = 1, hexists = 1, hget = 1, hmget = 1, hset = 2,
    incrby = 1, lindex = 1, linsert = 3, lpos = 1, lpush = 1, lrange = 2, lrem = 2, ltrim = 2,
    pexpire = 1, publish = 1, rpush = 1, set = 1, spublish = 1, zadd = 2, zcount = 2, zmscore = 1, zrange = 2,
    zrem = 1, zremrangebyscore = 2, zrevrange = 2, zscore = 1,
}
-- Returns a list of the commands that the user may not run for this name. `rest`: replaces the text
-- after the name in keys that have such a text; nil: keep the text of the row.
local function lacks(name, rest)
    local KEYS, lacking = {name}, {}
    local function ask(command, ...)
        if not redis.acl_check_cmd(command, ...) then
            local key = ...
            lacking[#lacking + 1] = string.upper(command) .. (key and ' ' .. key or '')
        end
    end
    -- (The client sends this script as text, with EVAL, and all other scripts by their hash, with
    -- EVALSHA.)
    ask('evalsha', '', '0')
    ask('time')
    --[[OWN CHANNEL]]
    local is_tagged = string.find(name, '{', 1, true)
    for _, row in ipairs({
    --[[ROWS]]
    }) do
        local before, after = unpack(row, is_tagged and 4 or 2)
        local key = before .. name .. (after ~= '' and rest or after)
        for _, command in ipairs(row[1]) do
            local all = {}
            for i = 1, behind[command] or 0 do
                all[i] = ''
            end
            ask(command, key, unpack(all))
        end
    end
    return lacking
end

local all = #lacks(random) == 0 and #lacks('{' .. random .. '}') == 0
local lacking, at = {}, 1
while not all and #lacking == 0 and at <= --[[NAMES]] do
    lacking, at = lacks(--[[OWN NAME]]), at + 1
end
if #lacking > 0 then
    local more = #lacking > 4 and ' and ' .. #lacking - 4 .. ' more' or ''
    return redis.error_reply('NOPERM the user may not run '
        .. table.concat(lacking, ', ', 1, math.min(#lacking, 4)) .. more)
end
local reply = script()
if type(reply) == 'table' and reply.err then
    return reply
end
return {all and 1 or 0, reply}
