-- Stands before eval.lua: looks whether the owner has the lock.
--
-- KEYS see eval.lua
-- ARGV see eval.lua
local held = redis.pcall('hexists', table.remove(KEYS), table.remove(ARGV))
