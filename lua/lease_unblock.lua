-- lease_unblock: let a blocked entry be leased again (exclusive mode), so many more times.
-- KEYS  1 blocked  2 later  3 grants
-- ARGV  1 entry id  2 deliveries granted
-- returns 1 unblocked, 0 it was not blocked
local count = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not count then return 0 end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[3], ARGV[1], count + tonumber(ARGV[2]))
redis.call('ZADD', KEYS[2], 0, ARGV[1])
return 1
