-- release_leader_lock: release the leader lock if this process still holds it.
--
-- KEYS
--   1    lock
-- ARGV
--   1    holder
-- RETURNS
--   1 released, 0 another process holds it or it has expired
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
