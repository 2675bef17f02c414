-- Appended to a script whose request is the first of its kind over a connection. This part checks
-- all rights that this kind of request needs, and then runs the script. Without this check, a user
-- without the right to publish could take a lock and be unable to release it. src/scripts/rights.rs
-- fills in the rows below. A row has the commands, and the texts before and after the name in a key
-- or channel: two texts for names without a brace, then two texts for names with a brace.
--
-- `random`: a name that nobody uses; `script`: a function that runs the request
-- reply: NOPERM = the user lacks rights, and nothing was done; otherwise the script's error, or {1
--        = the user may use all names, 0 = only this one; the script's reply}
--
-- Each check has a complete argument list, because newer servers refuse to check a command with too
-- few arguments. `arguments_after_key`: how many arguments follow the key.
local arguments_after_key = {
    decrby = 1, getrange = 2, hdel = 1, hexists = 1, hget = 1, hmget = 1, hset = 2,
    incrby = 1, lindex = 1, linsert = 3, lpos = 1, lpush = 1, lrange = 2, lrem = 2, ltrim = 2,
    pexpire = 1, publish = 1, rpush = 1, set = 1, spublish = 1, zadd = 2, zcount = 2, zmscore = 1, zrange = 2,
    zrem = 1, zremrangebyscore = 2, zrevrange = 2, zscore = 1,
}
-- Returns a list of the commands that the user may not run for this name. `suffix`: replaces the
-- text after the name in keys that have such a text; nil: keep the text of the row.
local function missing_rights(name, suffix)
    local KEYS, missing = {name}, {}
    local function check(command, ...)
        if not redis.acl_check_cmd(command, ...) then
            local key = ...
            missing[#missing + 1] = string.upper(command) .. (key and ' ' .. key or '')
        end
    end
    -- (The client sends this script as text, with EVAL, and all other scripts by their hash, with
    -- EVALSHA.)
    check('evalsha', '', '0')
    check('time')
    --[[OWN CHANNEL]]
    local is_tagged = string.find(name, '{', 1, true)
    for _, row in ipairs({
    --[[ROWS]]
    }) do
        local before, after = unpack(row, is_tagged and 4 or 2)
        local key = before .. name .. (after ~= '' and suffix or after)
        for _, command in ipairs(row[1]) do
            local arguments = {}
            for i = 1, arguments_after_key[command] or 0 do
                arguments[i] = ''
            end
            check(command, key, unpack(arguments))
        end
    end
    return missing
end

local may_use_all = #missing_rights(random) == 0 and #missing_rights('{' .. random .. '}') == 0
local missing, at = {}, 1
while not may_use_all and #missing == 0 and at <= --[[NAMES]] do
    missing, at = missing_rights(--[[OWN NAME]]), at + 1
end
if #missing > 0 then
    local more = #missing > 4 and ' and ' .. #missing - 4 .. ' more' or ''
    return redis.error_reply('NOPERM the user may not run '
        .. table.concat(missing, ', ', 1, math.min(#missing, 4)) .. more)
end
local reply = script()
if type(reply) == 'table' and reply.err then
    return reply
end
return {may_use_all and 1 or 0, reply}
