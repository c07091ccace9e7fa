-- rsmq_get_attributes: read the attributes of an RSMQ queue.
-- KEYS  1 zset  2 hash
-- ARGV  1 ms in one stored vt or delay
-- returns {{vt, delay, maxsize, totalrecv, totalsent, created, modified}, messages, hidden since the second began, hidden now}
-- @include rsmq_config
-- @include rsmq_attributes
local config, problem = rsmq_config(KEYS[2], tonumber(ARGV[1]))
if not config then return problem end
return rsmq_attributes(KEYS[1], KEYS[2])
