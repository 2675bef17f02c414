-- Comes after free.lua in acquire.lua, or before free.lua if the lock is most likely held. This
-- part handles a request while another redlatch owner has the lock. If an owner asks for the first
-- time, it gets an entry. If an owner asks again and still has its entry, it gets only a reply.
--
-- The rest of the script would do the same, but would run PTTL for every first request. In this
-- part only the first owner in the queue gets the remaining lease, because that owner asks again
-- when the lease ends. The other owners get it in the reply to their next poll. (If the rest of the
-- script created its functions, a poll would take nearly twice as long. A process that waits for
-- thousands of names sends thousands of polls a second. The reply is a text, because a list costs
-- the server as much as a command.)
--
-- RPUSH is the first write, because its reply shows whether any owner waits. If a later command is
-- refused, if the owner already had an entry, or if the first owner in the queue finds no usual
-- time to live, the script removes the new entry, and the rest of the script replies. So the script
-- first checks that the user may remove the entry. In a poll, a refused command does no harm,
-- because a poll adds no entry. (A usual time to live is below 10^14 ms. Lua would write a longer
-- time with an exponent.)
local redis, KEYS, ARGV = redis, KEYS, ARGV
local holders = redis.pcall('hrandfield', KEYS[1], '2')
local held_by = holders and holders[1]
local is_held = held_by and not holders[2] and held_by ~= ARGV[2]
    and string.sub(held_by, 15, 15) == '8' and string.find(held_by, '^:%d+$', 37)
if is_held and ARGV[4] then
    local clock, left = redis.call('time'), redis.call('pttl', KEYS[1])
    local place = left >= 0 and left < 1e14 and string.find(held_by, '^[%x-]+:')
        and redis.call('lpos', KEYS[2], ARGV[2])
    if place then
        redis.call('pexpire', KEYS[2], '60000')
        local asked_prefix = string.gsub(KEYS[2], 'queue', 'asked', 1)
        redis.call('set', asked_prefix .. ':' .. ARGV[2], ARGV[4], 'px', '2000')
        return clock[1] .. ' ' .. clock[2] .. ' ' .. left .. ' ' .. place .. ' 0'
    end
elseif is_held and redis.acl_check_cmd('lrem', KEYS[2], '', '') then
    local clock, length = redis.call('time'), redis.pcall('rpush', KEYS[2], ARGV[2])
    -- (A server that is out of memory refuses RPUSH. The rest of the script can add the entry even
    -- then.)
    if type(length) == 'number' then
        local place = length - 1
        local left = place == 0 and redis.pcall('pttl', KEYS[1])
        if (place == 0 and type(left) == 'number' and left >= 0 and left < 1e14
            or place > 0 and redis.pcall('lpos', KEYS[2], ARGV[2]) == place)
            and redis.pcall('pexpire', KEYS[2], '60000') == 1 then
            -- This does the same as `send_wanted` in ../prelude.lua.
            local number = place == 0 and string.find(held_by, '[13579]$', -1)
                and string.sub(held_by, 38)
            if number and tonumber(number) >= 2^50 then
                redis.pcall('publish',
                    'redisson_lock__channel:{redlatch:' .. string.sub(held_by, 1, 36) .. '}',
                    'want ' .. number .. ' ' .. KEYS[1])
            end
            return clock[1] .. ' ' .. clock[2] .. ' '
                .. (left and left .. ' 0' or '2000 ' .. place) .. ' 1'
        end
        redis.call('lrem', KEYS[2], '-1', ARGV[2])
    end
end

