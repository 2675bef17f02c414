-- Leaves the queue; and the lock, if it was granted meanwhile.
--
-- KEYS see ../hand_off.lua
-- ARGV as of release.lua (since and count 0, if they are not known)
-- reply: as of release.lua
--
-- Whoever was granted a lock and does not want it sends this, too. If a writer leaves for whom readers
-- waited, they are let in (`look`).
public, database = ARGV[4], ARGV[5] or 0
redis.pcall('lrem', queue, 1, ARGV[1])
return release(ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]))
