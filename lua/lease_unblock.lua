-- lease_unblock: make a blocked entry available again, for a number of further deliveries (exclusive mode).
--
-- KEYS
--   1    lease blocked
--   2    lease redeliver_at
--   3    lease max_deliveries
-- ARGV
--   1    entry id
--   2    further deliveries
-- RETURNS
--   1 unblocked, 0 the entry was not blocked
local deliveries = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not deliveries then return 0 end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[3], ARGV[1], deliveries + tonumber(ARGV[2]))
redis.call('ZADD', KEYS[2], 0, ARGV[1])
return 1
