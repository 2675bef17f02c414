-- Adds a thread to the waiters. The thread holds the lock and is about to release it.
--
-- KEYS, ARGV 1 see waiters.lua
-- ARGV 2 owner, 3 waiter
-- reply: 1 = the thread is among the waiters; 0 = this owner does not have the lock
--
-- A notifier must have the lock, too, so no thread can notify between this script and the release.
-- If the request is sent again, the second copy may arrive after the release. This copy changes
-- nothing, because then another owner has the lock. (If the lock was passed on inside the process,
-- the same owner still has it. The waiter then already has an entry or a record.)
local held = is_held_by(ARGV[2])
if held ~= true then
    return held or 0
end
if redis.call('lpos', waiting, ARGV[3]) or redis.call('hexists', notified, ARGV[3]) == 1 then
    return 1
end
-- The list must never be left without a time to live, so the script first checks the right to
-- PEXPIRE. The script also checks the rights that the later release needs: if the release were
-- refused, the thread would wait for the end of its own lease. RPUSH is the first write, so that a
-- server that is out of memory refuses it. Otherwise this server would later refuse to grant the
-- lock to the thread again.
local commands = {
    {'pexpire', waiting, KEYS_TTL}, {'del', lock}, {'lpop', waiting}, {'hset', lock, '', ''},
    {'time'}, {'pubsub', 'numsub', ''}, {'publish', own_channel(ARGV[3]), ''},
}
if string.sub(ARGV[2], -6) == ':write' then
    -- A writer's release grants the lock to readers, which needs these commands.
    local readers = (string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}') .. ':'
    commands[#commands + 1] = {'lindex', waiting, '0'}
    commands[#commands + 1] = {'lrange', waiting, '0', '0'}
    commands[#commands + 1] = {'set', readers, ''}
end
for _, command in ipairs(commands) do
    if not redis.acl_check_cmd(unpack(command)) then
        return redis.error_reply('NOPERM the user may not run '
            .. table.concat({string.upper(command[1]), command[2]}, ' '))
    end
end
redis.call('rpush', waiting, ARGV[3])
redis.call('pexpire', waiting, KEYS_TTL)
return 1
