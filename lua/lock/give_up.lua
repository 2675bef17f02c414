-- Removes an owner from the queue, and releases the lock if the owner was granted it meanwhile.
--
-- KEYS see ../hand_off.lua
-- ARGV and reply see release.lua
--
-- A client also sends this script for an owner that was granted a lock and does not want it. Only
-- the head of the queue knows of an open window. So if the head leaves, `grant_next` sends a
-- message to the next process. If a waiting writer leaves, `grant_next` grants the lock to the
-- readers behind it.
public, database = ARGV[2], ARGV[5] or 0
redis.call('lrem', queue, 1, ARGV[1])
return release(ARGV[1], tonumber(ARGV[3] or 0), tonumber(ARGV[4] or 1) - 1)
