-- rsmq_create_queue: create an RSMQ queue and list it, or say that it exists.
-- KEYS  1 hash  2 queues  3 once
-- ARGV  1 queue  2 vt  3 delay  4 maxsize  5 life of once (ms)
-- returns 1; the error queueExists where another call created it
if redis.call('EXISTS', KEYS[3]) == 1 then return 1 end
local seconds = redis.call('TIME')[1]
if redis.call('HSETNX', KEYS[1], 'vt', ARGV[2]) == 0 then
  return redis.error_reply('CHASQUIRSMQ queueExists')
end
redis.call('HSETNX', KEYS[1], 'delay', ARGV[3])
redis.call('HSETNX', KEYS[1], 'maxsize', ARGV[4])
redis.call('HSETNX', KEYS[1], 'created', seconds)
redis.call('HSETNX', KEYS[1], 'modified', seconds)
redis.call('SADD', KEYS[2], ARGV[1])
redis.call('SET', KEYS[3], 1, 'PX', ARGV[5])
return 1
