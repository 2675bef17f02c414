-- Releases several locks of one kind, as one ../lock/release.lua for each lock would do.
--
-- Comes after the function `one`, which releases a lock: ../lock/release.lua with the files that
-- are prepended to it.
--
-- KEYS see acquire.lua
-- ARGV for each lock, one after the other: the five arguments of ../lock/release.lua
-- reply: the list of the locks' replies: nil or a number as in ../lock/release.lua; -1 = an error,
--        which a release of that lock alone would return
local size, replies = #KEYS / (#ARGV / 5), {}
for i = 1, #ARGV / 5 do
    local keys = {unpack(KEYS, (i - 1) * size + 1, i * size)}
    local is_done, reply = pcall(one, keys, {unpack(ARGV, i * 5 - 4, i * 5)})
    -- (Redis would end the list at a nil, but sends false as nil.)
    if not is_done or type(reply) == 'table' then
        replies[i] = -1
    else
        replies[i] = reply or false
    end
end
return replies
