-- Gives a hold of a read-write lock back. If it was the last one, the lock goes to the next process
-- that waits, or to all next ones that want to read.
--
-- KEYS, ARGV 1 and 2 see ../hand_off.lua
-- ARGV 3 owner, 4 since when the chain lasts: more than 0 by the server's clock, else minus its age
--      (both in ms), 5 its count
-- reply: as of ../lock/release.lua; and 4 = others hold it still. A writer's, who reads on: 4, and
--        readers were let in
return release(ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]))
