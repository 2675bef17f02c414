-- Renews the leases of parties, all of one process.
--
-- KEYS 1 the barrier, 2 its parties
-- ARGV 1 lease in ms, 2… parties
-- reply: how many of them wait
--
-- A lease that has ended stays so: the next script that looks breaks the barrier.
local now, kept = clock(), 0
for at = 2, #ARGV do
    local ends = redis.call('zscore', parties, ARGV[at])
    if ends and tonumber(ends) > now then
        redis.call('zadd', parties, 'xx', 'gt', text(now + ARGV[1]), ARGV[at])
        kept = kept + 1
    end
end
return kept
