-- Leaves the queue; and the lock, if it was granted meanwhile.
--
-- KEYS see queue.lua
-- ARGV as of release.lua (since and count 0, if they are not known)
-- reply: as of release.lua
--
-- Whoever was granted a lock and does not want it sends this, too. If the head leaves while a
-- window is open, the next one is told of it (`look`): only the head was.
public, database = ARGV[4], ARGV[5] or 0
redis.pcall('lrem', queue, 1, ARGV[1])
return release(ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]))
