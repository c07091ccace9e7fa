-- rsmq_set_visibility: change the time at which a message becomes visible.
--
-- KEYS
--   1    zset
--   2    hash
-- ARGV
--   1    id
--   2    visible in (ms)
--   3    unit of the stored vt and delay (ms)
-- RETURNS
--   1 changed, 0 the message does not exist
-- @include rsmq_config
-- @include now_ms
local config, problem = rsmq_config(KEYS[2], tonumber(ARGV[3]))
if not config then return problem end
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[1], string.format('%.0f', now_ms() + tonumber(ARGV[2])), ARGV[1])
return 1
