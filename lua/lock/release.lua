-- Releases a lock or a read-write lock, and grants it to the next process, or to all next readers,
-- if any wait.
--
-- KEYS see ../hand_off.lua
-- ARGV 1 owner, 2 the lock's public channel, 3 when the chain (see `hand_on`) began: if above 0,
--      the server's time in ms, else minus the chain's age in ms, 4 the chain's count after the
--      next grant, which is one more than now, 5 number of the database, if it is not 0. If the
--      client does not send 5, it sends 3 and 4 only if the chain is at least MIN_CHAIN_AGE old
-- reply: nil = this owner does not have the lock; 1 = handed on; 2 = a window is open; 0 = free,
--        and the queue is empty; 3 = as 0, and the chain ends, because no Redisson client listens;
--        4 = other owners still hold the lock, or the writer now only reads, and waiting readers
--        got the lock; 5 = as one of 0 to 4, but the server refused a public message, so Redisson's
--        waiters did not get it
--
-- The owner names one acquisition, so the request may be sent again. The second request then gets
-- nil. If this owner has lost the lock, the lock may be free while processes wait. The script then
-- grants the lock to the first of these processes.
public, database = ARGV[2], ARGV[5] or 0
return release(ARGV[1], tonumber(ARGV[3] or 0), tonumber(ARGV[4] or 1) - 1)
