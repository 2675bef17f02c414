-- A user's script (eval.lua) that runs one command.
--
-- KEYS the command's keys
-- ARGV the command's name, then its arguments
-- reply: the command's
for i, key in ipairs(KEYS) do
    table.insert(ARGV, i + 1, key)
end
return redis.call(unpack(ARGV))
