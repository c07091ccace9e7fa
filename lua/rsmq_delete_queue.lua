-- rsmq_delete_queue: delete an RSMQ queue and all its messages.
-- KEYS  1 hash  2 zset  3 queues  4 once
-- ARGV  1 queue  2 life of once (ms)
-- returns 1; the error queueNotFound where there was none
if redis.call('EXISTS', KEYS[4]) == 1 then return 1 end
local gone = redis.call('DEL', KEYS[1], KEYS[2])
redis.call('SREM', KEYS[3], ARGV[1])
if gone == 0 then return redis.error_reply('CHASQUIRSMQ queueNotFound') end
redis.call('SET', KEYS[4], 1, 'PX', ARGV[2])
return 1
