-- Repeats a client's last changes in one sequence, if this server lacks them because it became the
-- master or was restarted.
--
-- KEYS 1 the semaphore, 2 record, 3 its mark
-- ARGV 1-4 as in once.lua, with the number of the last change as 1, 5 channel, 6 the mark of the
--      semaphore that was changed, 7… for each change its number and how many permits it gave back
--      (negative: it took permits; 0: abandon.lua gave back the permits that it took)
-- reply: how many permits the script added (negative: took away); {now}: too late
--
-- The sequence's record shows which changes the server has: see once.lua. If a repeated change
-- takes permits, the number of free permits may become negative, until enough permits are given
-- back. If the semaphore has another mark, or no mark, the script repeats nothing: the old
-- semaphore was removed, or this server never had it.
if recorded_number > number then
    return 0
end
local refused = refusal()
if refused then
    return refused
end
local permits, given_back = 0, 0
for at = 7, #ARGV, 2 do
    given_back = tonumber(ARGV[at + 1])
    if tonumber(ARGV[at]) > recorded_number and ARGV[6] == mark then
        permits = permits + given_back
    elseif tonumber(ARGV[at]) == recorded_number and given_back == 0 and recorded_mark == mark then
        permits = permits + tonumber(recorded_result)
    end
end
if permits == 0 or not stored(KEYS[1]) then
    if recorded_number < number or given_back == 0 then
        remember(ARGV[1] .. '=0')
    end
    return 0
end
local free, refused = change(given_back == 0 and '0' or '1', 'incrby', KEYS[1], permits)
if refused then
    return free
end
if permits > 0 then
    publish_free(ARGV[5], free)
end
return permits
