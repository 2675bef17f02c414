-- Appended to a user's script, which is the function `script`. Runs this function if the owner has
-- the lock. (A writer must have the write lock.)
--
-- KEYS those of the user's script, then the lock, which is removed before the user's script runs
-- ARGV those of the user's script, then the owner, which is removed before the user's script runs
-- reply: 0 = this owner does not have the lock, and nothing was changed; {1, result} = the user's
--        script has run; {0, text} = the user's script ended with this error, and what it had
--        written before remains
--
-- An error of the user's script is part of the reply. So an error reply comes from the server
-- itself, and means that the user's script has not run. A client may follow a redirect.
local at, last = #KEYS, #ARGV
local lock, owner = KEYS[at], ARGV[last]
KEYS[at], ARGV[last] = nil, nil
local held = redis.pcall('hexists', lock, owner)
if held == 1 and string.sub(owner, -6) == ':write' then
    held = redis.call('hget', lock, 'mode') == 'write' and 1 or 0
end
if held ~= 1 then
    return held
end
local ran, reply = pcall(script)
local failed = type(reply) == 'table' and reply.err
if ran and not failed then
    return {1, reply}
end
return {0, tostring(failed or reply)}
