-- Comes after free.lua in acquire.lua, or before free.lua if the lock is most likely held. This
-- part handles a request while another redlatch owner has the lock. An owner that asks for the
-- first time gets an entry. An owner that asks again and still has its entry gets only a reply.
--
-- The rest of the script would do the same, but creating its functions takes longer than these
-- commands. (A process that waits for thousands of names sends thousands of polls a second.)
--
-- The commands that may be refused run before RPUSH adds the entry, in the same order as in `stand`
-- (../hand_off.lua).
local redis, KEYS, ARGV = redis, KEYS, ARGV
local holders = redis.pcall('hrandfield', KEYS[1], '2')
local who = holders and holders[1]
if who and not holders[2] and who ~= ARGV[2]
    and string.sub(who, 15, 15) == '8' and string.find(who, '^:%d+$', 37) then
    local clock, left = redis.call('time'), redis.call('pttl', KEYS[1])
    local place, fresh = redis.call('lpos', KEYS[2], ARGV[2]), 0
    if left >= 0 and not place == not ARGV[4] and (not place or string.find(who, '^[%x-]+:')) then
        local exists = redis.call('pexpire', KEYS[2], '60000')
        if place then
            local asked = string.gsub(KEYS[2], 'queue', 'asked', 1)
            redis.call('set', asked .. ':' .. ARGV[2], ARGV[4], 'px', '2000')
        else
            place, fresh = redis.call('rpush', KEYS[2], ARGV[2]) - 1, 1
        end
        if exists == 0 then
            redis.call('pexpire', KEYS[2], '60000')
            -- This does the same as `say_wanted` in ../prelude.lua.
            local number = string.match(who, '[13579]$') and string.sub(who, 38)
            if number and tonumber(number) >= 2^50 then
                redis.pcall('publish',
                    'redisson_lock__channel:{redlatch:' .. string.sub(who, 1, 36) .. '}',
                    'want ' .. number .. ' ' .. (ARGV[3] or '0') .. ' ' .. KEYS[1])
            end
        end
        return {clock[1] * 1000 + math.floor(clock[2] / 1000), left, place, 0, fresh}
    end
end

