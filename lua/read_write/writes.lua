-- Stands before ../lock/eval.lua: looks whether the owner writes.
--
-- KEYS see ../lock/eval.lua
-- ARGV see ../lock/eval.lua
local lock = table.remove(KEYS)
local held = redis.pcall('hexists', lock, table.remove(ARGV))
if held == 1 and redis.call('hget', lock, 'mode') ~= 'write' then
    held = 0
end
