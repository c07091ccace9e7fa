-- rsmq_get_attributes: read the attributes of an RSMQ queue.
--
-- KEYS
--   1    zset
--   2    hash
-- ARGV
--   1    unit of the stored vt and delay (ms)
-- RETURNS
--   {{vt, delay, maxsize, totalrecv, totalsent, created, modified}, messages,
--   messages hidden at the start of the current second, messages hidden now}
-- @include rsmq_config
-- @include rsmq_attributes
local config, problem = rsmq_config(KEYS[2], tonumber(ARGV[1]))
if not config then return problem end
return rsmq_attributes(KEYS[1], KEYS[2])
