-- repeat_upsert: write a repeat and its next fire; a changed repeat starts counting its fires anew.
-- KEYS  1 repeat  2 spec
-- ARGV  1 next fire (ms)  2 repeat key  3 spec body
-- returns 1 new, 2 changed, 0 as it was
local before = redis.call('HGET', KEYS[2], 'spec')
if before == ARGV[3] and redis.call('ZSCORE', KEYS[1], ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])
redis.call('HSET', KEYS[2], 'spec', ARGV[3])
if before and before ~= ARGV[3] then redis.call('HDEL', KEYS[2], 'fired') end
return before and 2 or 1
