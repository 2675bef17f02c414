-- Removes a barrier. Its parties find it broken.
--
-- KEYS 1 the barrier, 2 slot, 3 its parties
-- ARGV 1-4 as in once.lua, 5 channel
-- reply: 1 = there was one, 0 = there was none
local number = present()
return once(function()
    return number and {'1', 'del', barrier, parties}
end, function()
    ended(ARGV[5], number)
end)
