-- rsmq_delete_queue: delete an RSMQ queue and all its messages.
--
-- KEYS
--   1    hash
--   2    zset
--   3    queues
--   4    idempotency marker
-- ARGV
--   1    queue
--   2    TTL of the idempotency marker (ms)
-- RETURNS
--   1; the error queueNotFound if the queue does not exist
-- @include check_writes
if redis.call('GET', KEYS[4]) then return 1 end
check_writes(KEYS[1], 'hash')
check_writes(KEYS[2], 'zset')
check_writes(KEYS[3], 'set', 'SREM')
check_writes(KEYS[4], nil, 'SET')
local deleted = redis.call('DEL', KEYS[1], KEYS[2])
redis.call('SREM', KEYS[3], ARGV[1])
if deleted == 0 then return redis.error_reply('CHASQUIRSMQ queueNotFound') end
redis.call('SET', KEYS[4], 1, 'PX', ARGV[2])
return 1
