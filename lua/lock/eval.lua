-- Appended to a user's script, which is the function `script`. Runs this function if the owner has
-- the lock. (For a writer, `eval_writer.lua` comes before this file.)
--
-- KEYS those of the user's script, then the lock, which is removed before the user's script runs
-- ARGV those of the user's script, then the owner, which is removed before the user's script runs
-- reply: that of the user's script; or the error NOTHELD, if this owner does not have the lock and
--        nothing was changed; or the error SCRIPT with a text, if the user's script ended with this
--        error. What the script had written before the error remains.
--
-- Any other error reply comes from the server itself, and means that the user's script has not run.
-- So if the server redirects the command to another server, the client may send it there.
local keys, args = KEYS, ARGV
local lock_index, owner_index = #keys, #args
local held = redis.pcall('hexists', keys[lock_index], args[owner_index])
keys[lock_index], args[owner_index] = nil, nil
if held ~= 1 then
    return type(held) == 'table' and held or {err = 'NOTHELD'}
end
local succeeded, reply = pcall(script)
if succeeded and (type(reply) ~= 'table' or not rawget(reply, 'err')) then
    return reply
end
local text = type(reply) == 'table' and rawget(reply, 'err') or reply
return {err = 'SCRIPT ' .. tostring(text)}
