-- Gives back the permits that an abandoned request took. If the abandoned request arrives after
-- this script, it takes no permits.
--
-- KEYS 1 the semaphore, 2 record, 3 its mark
-- ARGV 1-4 as in once.lua, of the request to abandon, 5 channel
-- reply: 1 = given back, 0 = the request took no permits, or took them from an earlier semaphore of
--        the name, {now} = too late, the record may have expired (see `refusal`), {now, last} as in
--        once.lua
if recorded_number ~= number then
    local refused = refusal()
    if not refused then
        remember(ARGV[1] .. '=0')
    end
    return refused or 0
elseif recorded_result == '0' or recorded_mark ~= mark or not stored(KEYS[1]) then
    return 0
end
local free, refused = change('0', 'incrby', KEYS[1], recorded_result)
if refused then
    return free
end
publish_free(ARGV[5], free)
return 1
