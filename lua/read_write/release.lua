-- Gives a hold of a read-write lock back. If it was the last one, the lock goes to the next process
-- that waits, or to all next ones that want to read.
--
-- KEYS see ../hand_off.lua
-- ARGV as of ../lock/release.lua
-- reply: as of ../lock/release.lua; and 4 = others hold it still. A writer's, who reads on: 4, and
--        readers were let in
public, database = ARGV[2], ARGV[5] or 0
return release(ARGV[1], tonumber(ARGV[3] or 0), tonumber(ARGV[4] or 0))
