-- Prepended to release.lua: frees locks whose queues are all empty, while the client sends no chain
-- (../lock/hand_over.lua).
--
-- The rest of the script would do the same, but creating its functions and tables costs as much as
-- these commands.
local redis, KEYS, ARGV = redis, KEYS, ARGV
local count = tonumber(ARGV[1])
local is_plain = string.sub(ARGV[3 + count], 1, 15) ~= 'redisson_rwlock'
-- The replies other than 0 of the locks that this part has handled; false = the rest of the script
-- must release this lock. (`is_handled` is nil if this part has handled no lock.)
local is_handled, special_replies
if #ARGV == 2 + 2 * count and redis.pcall('exists', unpack(KEYS, count + 1, 2 * count)) == 0 then
    is_handled = true
    for i = 1, count do
        local lock, owner, public, is_held = KEYS[i], ARGV[2 + i], ARGV[2 + count + i]
        if is_plain then
            is_held = redis.pcall('hdel', lock, owner) == 1
        elseif string.sub(owner, -6) == ':write' then
            is_held = redis.pcall('hexists', lock, owner) == 1 and redis.pcall('hlen', lock) == 2
                and redis.pcall('del', lock) == 1
        end
        -- A reader's hold has more keys and shares the lock. The rest of the script releases it.
        local published = is_held and redis.pcall('publish', public, is_plain and '0' or '1')
        if type(published) ~= 'number' then
            special_replies = special_replies or {}
            special_replies[i] = is_held and 5 or false
        end
    end
    if not special_replies then
        return 0
    end
end

