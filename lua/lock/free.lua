-- At the beginning of acquire.lua (with queue_up.lua) and of try.lua: takes a free lock without
-- waiters.
--
-- The rest of the script would do the same, but creating its functions costs as much as these
-- commands. (The arguments here are strings, because the server takes as long to convert a number
-- as to run a command. The names are local, because Lua takes longer to look up global names.)
local redis, KEYS, ARGV = redis, KEYS, ARGV
if redis.pcall('exists', KEYS[1], KEYS[2], KEYS[3]) == 0 then
    local token = KEYS[4] and redis.pcall('incrby', KEYS[4], '1024')
    if (not token or type(token) == 'number' and token >= 1024 and token < 2^53)
        and redis.pcall('hset', KEYS[1], ARGV[2], '1') == 1 then
        if redis.pcall('pexpire', KEYS[1], ARGV[1]) == 1 then
            return token and {0, token} or 0
        end
        -- A lock must not stay without a time to live.
        redis.pcall('hdel', KEYS[1], ARGV[2])
    elseif type(token) == 'number' and token < 1024 then
        -- Undo the INCRBY: the rest of the script refuses a negative value (take_tokens in
        -- holder.lua).
        redis.pcall('incrby', KEYS[4], '-1024')
    end
end

