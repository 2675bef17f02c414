-- Releases a lock or a read-write lock, and grants it to the next process, or to all next readers,
-- if any wait.
--
-- KEYS see ../hand_off.lua
-- ARGV 1 owner, 2 the lock's public channel; no more arguments if the chain is younger than AGE
--      (../hand_off.lua), or not known: then a chain begins with the next owner. Otherwise 3 when
--      it began: more than 0 by the server's clock, else minus its age (both in ms), 4 its count,
--      5 number of the database, if it is not 0; then 3 and 4 are there, and may be 0
-- reply: nil = this owner does not have it; 1 = handed on; 2 = left to Redisson for a window; 0 =
--        free, and the queue is empty; 3 = as 0, and no client listens in public: the chain ends; 4
--        = others still hold it, or its owner, a writer, reads on, and readers were let in; 5 = as
--        0, 1, 2 or 4, but a public message was refused: Redisson's waiters did not hear
--
-- The owner names one acquisition, so the request may be sent again. A copy answers nil and grants
-- nothing, since the first one left nothing to grant. A lock that was lost meanwhile may be free
-- with a queue: then it is granted.
public, database = ARGV[2], ARGV[5] or 0
return release(ARGV[1], tonumber(ARGV[3] or 0), tonumber(ARGV[4] or 0))
