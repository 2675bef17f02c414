-- Records a keep-alive for notified waiters that have not yet taken and released the lock again.
--
-- KEYS, ARGV 1 see waiters.lua
-- ARGV 2… the waiters, all of one process
-- reply: how many of these waiters have a record
local kept_count = 0
for i = 2, #ARGV do
    local own_record = redis.call('hget', notified, ARGV[i])
    if own_record then
        record(ARGV[i], string.match(own_record, '%S+$'))
        kept_count = kept_count + 1
    end
end
return kept_count
