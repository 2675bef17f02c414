-- Prepended to `eval`, if the owner is a writer. Goes on only if the lock is held for writing.
--
-- KEYS, ARGV and reply as in `eval`
local mode = redis.pcall('hget', KEYS[#KEYS], 'mode')
if mode ~= 'write' then
    return type(mode) == 'table' and mode or {err = 'NOTHELD'}
end
