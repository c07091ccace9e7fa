-- acquire_leader_lock: acquire the leader lock if it is free, or renew it if this process holds it.
--
-- KEYS
--   1    lock
-- ARGV
--   1    holder
--   2    TTL (s)
-- RETURNS
--   1 this process is the leader, 0 another process is the leader
local holder = redis.call('GET', KEYS[1])
if not holder then
  redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
  return 1
end
if holder == ARGV[1] then
  redis.call('EXPIRE', KEYS[1], ARGV[2])
  return 1
end
redis.call('EXPIRE', KEYS[1], ARGV[2], 'NX') -- Set a TTL on a lock that has none; otherwise no leader could ever be elected.
return 0
