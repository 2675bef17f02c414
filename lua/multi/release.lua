-- Releases several locks of one kind, each as by a request of its own.
--
-- Before it stands the function `one`, which releases a lock: ../lock/release.lua, with the parts
-- before it.
--
-- KEYS as of acquire.lua
-- ARGV for each lock, one behind the other: all five of ../lock/release.lua
-- reply: the list of the locks' replies: nil and the numbers of ../lock/release.lua; -1 = an error,
--        which a release of that lock alone would show
local size, replies = #KEYS / (#ARGV / 5), {}
for i = 1, #ARGV / 5 do
    local keys = {unpack(KEYS, (i - 1) * size + 1, i * size)}
    local is_done, reply = pcall(one, keys, {unpack(ARGV, i * 5 - 4, i * 5)})
    -- (A list ends before a nil. False is nil to the client.)
    if not is_done or type(reply) == 'table' then
        replies[i] = -1
    else
        replies[i] = reply or false
    end
end
return replies
