-- A user's script (eval.lua) that runs one command.
--
-- KEYS the command's keys
-- ARGV the command's arguments, then its name
-- reply: the command's
local command = {table.remove(ARGV)}
for _, parts in ipairs({KEYS, ARGV}) do
    for _, part in ipairs(parts) do
        command[#command + 1] = part
    end
end
return redis.call(unpack(command))
