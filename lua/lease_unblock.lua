-- lease_unblock: make a blocked entry available again, for a number of further deliveries (exclusive mode).
--
-- KEYS
--   1    idempotency marker
--   2    lease blocked
--   3    lease redeliver_at
--   4    lease max_deliveries
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2    entry id
--   3    further deliveries
-- RETURNS
--   1 unblocked, 0 the entry was not blocked
-- @include check_writes
-- @include cached_reply
-- @include store_reply
local first_reply = cached_reply(KEYS[1])
if first_reply then return first_reply end
local deliveries = redis.call('ZSCORE', KEYS[2], ARGV[2])
if not deliveries then return 0 end
check_writes(KEYS[1], nil, 'SET')
check_writes(KEYS[3], 'zset', 'ZADD')
check_writes(KEYS[4], 'hash', 'HSET')
redis.call('ZREM', KEYS[2], ARGV[2])
redis.call('HSET', KEYS[4], ARGV[2], deliveries + tonumber(ARGV[3]))
redis.call('ZADD', KEYS[3], 0, ARGV[2])
return store_reply(KEYS[1], ARGV[1], 1)
