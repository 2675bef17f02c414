-- Releases a lock or a read-write lock, and grants it to the next process, or to all next readers,
-- if any wait.
--
-- KEYS see ../hand_off.lua
-- ARGV 1 owner, 2 the lock's public channel; nothing more if the chain is younger than AGE
--      (../hand_off.lua), or not known: then a chain begins with the next owner. Otherwise 3 when
--      it began: if above 0, the server's time, else minus its age (both in ms), 4 its count, 5
--      number of the database, if it is not 0: then 3 and 4 are always sent, and may be 0
-- reply: nil = this owner does not have it; 1 = handed on; 2 = left to Redisson for a window; 0 =
--        free, and the queue is empty; 3 = as 0, and no client listens to the public channel: the
--        chain ends; 4 = others still hold it, or its owner, a writer, reads on, and waiting
--        readers got it; 5 = as one of 0 to 4, but the server refused a public message, so
--        Redisson's waiters did not get it
--
-- The owner names one acquisition, so the request may be sent again. A copy gets nil. If this owner
-- has lost the lock, the lock may be free while processes wait: then the script grants the lock to
-- the first of them.
public, database = ARGV[2], ARGV[5] or 0
return release(ARGV[1], tonumber(ARGV[3] or 0), tonumber(ARGV[4] or 0))
