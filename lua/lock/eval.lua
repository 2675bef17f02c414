-- Appended to a user's script, which is the function `script`. Runs this function if the owner has
-- the lock. (If the owner is a writer, it must have the write lock.)
--
-- KEYS those of the user's script, then the lock, which is removed before the user's script runs
-- ARGV those of the user's script, then the owner, which is removed before the user's script runs
-- reply: that of the user's script; or the error NOTHELD, if this owner does not have the lock and
--        nothing was changed; or the error SCRIPT with a text, if the user's script ended with this
--        error. What the script had written before the error remains.
--
-- Any other error reply comes from the server itself, and means that the user's script has not run.
-- So if the error redirects the command to another server, the client may send the command there.
local at, last = #KEYS, #ARGV
local lock, owner = KEYS[at], ARGV[last]
KEYS[at], ARGV[last] = nil, nil
local held = redis.pcall('hexists', lock, owner)
-- The text of a writer ends with `:write`, and the text of a plain owner with a digit.
if held == 1 and string.byte(owner, -1) == 101 then
    held = redis.call('hget', lock, 'mode') == 'write' and 1 or 0
end
if held ~= 1 then
    return type(held) == 'table' and held or {err = 'NOTHELD'}
end
local ran, reply = pcall(script)
local failed = type(reply) == 'table' and rawget(reply, 'err')
if ran and not failed then
    return reply
end
return {err = 'SCRIPT ' .. tostring(failed or reply)}
