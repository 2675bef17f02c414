-- Releases several locks of one kind, as one ../lock/release.lua for each lock would do.
--
-- Comes after release_uncontended.lua and after the function `release_one`, which releases a lock:
-- ../lock/release.lua with the files that are prepended to it.
--
-- KEYS see acquire.lua
-- ARGV 1 the number of the locks, 2 number of the database, then the owners of all locks, and their
--      public channels. If one of the locks has a chain, the beginnings of all chains follow, and
--      their counts (see ../lock/release.lua; 0 and 1 for a lock without a chain)
-- reply: 0 = the reply of each lock is 0; otherwise the list of the locks' replies: nil or a number
--        as in ../lock/release.lua; -1 = an error, which a release of that lock alone would return
local replies = {}
for i = 1, count do
    local special_reply = special_replies and special_replies[i]
    if is_handled and special_reply ~= false then
        replies[i] = special_reply or 0
    else
        local keys = {KEYS[i], KEYS[count + i], KEYS[2 * count + i], KEYS[3 * count + i]}
        local start_or_age, chain_count =
            ARGV[2 + 2 * count + i] or '0', ARGV[2 + 3 * count + i] or '1'
        local is_done, reply = pcall(release_one, keys,
            {ARGV[2 + i], ARGV[2 + count + i], start_or_age, chain_count, ARGV[2]})
        -- (Redis would end the list at a nil, but sends false as a nil.)
        replies[i] = (not is_done or type(reply) == 'table') and -1 or reply or false
    end
end
return replies
