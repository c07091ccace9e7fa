-- rsmq_set_visibility: let a message become visible at another time.
-- KEYS  1 zset  2 hash
-- ARGV  1 id  2 visible in (ms)  3 ms in one stored vt or delay
-- returns 1 done, 0 there is no such message
-- @include rsmq_config
-- @include clock
local config, problem = rsmq_config(KEYS[2], tonumber(ARGV[3]))
if not config then return problem end
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[1], string.format('%.0f', now_ms() + tonumber(ARGV[2])), ARGV[1])
return 1
