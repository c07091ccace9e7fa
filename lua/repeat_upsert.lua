-- repeat_upsert: create or change a repeatable job and set its next fire. A change resets the count of its
-- fires.
--
-- KEYS
--   1    repeat
--   2    repeat spec
-- ARGV
--   1    next fire (ms)
--   2    repeat key
--   3    encoded spec
-- RETURNS
--   1 created, 2 changed, 0 unchanged
-- @include check_writes
check_writes(KEYS[2], 'hash', 'HSET', 'HDEL')
local stored_spec = redis.call('HGET', KEYS[2], 'spec')
if stored_spec == ARGV[3] and redis.call('ZSCORE', KEYS[1], ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])
redis.call('HSET', KEYS[2], 'spec', ARGV[3])
if stored_spec and stored_spec ~= ARGV[3] then redis.call('HDEL', KEYS[2], 'fired') end
return stored_spec and 2 or 1
