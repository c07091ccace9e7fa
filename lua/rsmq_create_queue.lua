-- rsmq_create_queue: create an RSMQ queue and add it to the set of queues.
--
-- KEYS
--   1    hash
--   2    queues
--   3    idempotency marker
-- ARGV
--   1    queue
--   2    vt
--   3    delay
--   4    maxsize
--   5    TTL of the idempotency marker (ms)
-- RETURNS
--   1; the error queueExists if another call created the queue
-- @include check_writes
if redis.call('GET', KEYS[3]) then return 1 end
check_writes(KEYS[2], 'set', 'SADD')
check_writes(KEYS[3], nil, 'SET')
local now_seconds = redis.call('TIME')[1]
if redis.call('HSETNX', KEYS[1], 'vt', ARGV[2]) == 0 then
  return redis.error_reply('CHASQUIRSMQ queueExists')
end
redis.call('HSETNX', KEYS[1], 'delay', ARGV[3])
redis.call('HSETNX', KEYS[1], 'maxsize', ARGV[4])
redis.call('HSETNX', KEYS[1], 'created', now_seconds)
redis.call('HSETNX', KEYS[1], 'modified', now_seconds)
redis.call('SADD', KEYS[2], ARGV[1])
redis.call('SET', KEYS[3], 1, 'PX', ARGV[5])
return 1
