-- Releases several locks of one kind, each as a separate request would.
--
-- Stands behind the function `one`, which releases a lock: ../lock/release.lua with the files that
-- stand before that one.
--
-- KEYS as of acquire.lua
-- ARGV for each lock, one behind the other: the five arguments of ../lock/release.lua
-- reply: the list of the locks' replies: nil or a number as in ../lock/release.lua; -1 = an error,
--        which a release of that lock alone would return
local size, replies = #KEYS / (#ARGV / 5), {}
for i = 1, #ARGV / 5 do
    local keys = {unpack(KEYS, (i - 1) * size + 1, i * size)}
    local is_done, reply = pcall(one, keys, {unpack(ARGV, i * 5 - 4, i * 5)})
    -- (Redis ends a list at the first nil, and sends false as nil.)
    if not is_done or type(reply) == 'table' then
        replies[i] = -1
    else
        replies[i] = reply or false
    end
end
return replies
