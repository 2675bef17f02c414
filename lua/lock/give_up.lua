-- Leaves the queue; and the lock, if it was granted meanwhile.
--
-- KEYS see ../hand_off.lua
-- ARGV as of release.lua
-- reply: as of release.lua
--
-- An owner that was granted a lock and does not want it sends this, too. If the head leaves while a
-- window is open, the next one is told of it (`look`): only the head was. Readers behind a writer
-- that leaves are let in.
public, database = ARGV[2], ARGV[5] or 0
redis.call('lrem', queue, 1, ARGV[1])
return release(ARGV[1], tonumber(ARGV[3] or 0), tonumber(ARGV[4] or 0))
