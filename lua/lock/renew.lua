-- Renews many holds.
--
-- KEYS 1..n the locks
-- ARGV 1 lease in ms (0: change nothing, only ask), 2..n+1 the owner of each
-- reply: for each lock 1 = renewed, 0 = not this owner's any more, else the server's refusal
--
-- It only raises: a hold may have a longer lease than the one asked for. pcall for each, so that a
-- lock that something else was written over spoils no other.
local replies = {}
for i, key in ipairs(KEYS) do
    local held = redis.pcall('hexists', key, ARGV[i + 1])
    if held == 1 then
        local left = redis.pcall('pttl', key)
        if ARGV[1] == '0' or type(left) == 'number' and left >= tonumber(ARGV[1]) then
            replies[i] = 1
        else
            local renewed = redis.pcall('pexpire', key, ARGV[1])
            replies[i] = type(renewed) == 'table' and renewed.err or renewed
        end
    elseif type(held) == 'table' and not string.find(held.err, 'WRONGTYPE') then
        replies[i] = held.err
    else
        replies[i] = 0
    end
end
return replies
