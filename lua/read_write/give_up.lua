-- Leaves the queue; and the lock, if it was granted meanwhile.
--
-- KEYS, ARGV 1 and 2 see ../hand_off.lua
-- ARGV 3 owner, 4 since when the chain lasts, 5 its count, as of release.lua (0 and 0, if they are
--      not known)
-- reply: as of release.lua
--
-- Whoever was granted a lock and does not want it sends this, too. If a writer leaves for whom readers
-- waited, they are let in (`look`).
redis.pcall('lrem', queue, 1, ARGV[3])
return release(ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]))
