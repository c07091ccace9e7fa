-- rsmq_set_attributes: change attributes of an existing RSMQ queue.
--
-- KEYS
--   1    zset
--   2    hash
-- ARGV
--   1..  name and value of each attribute, in the order in which they are written
-- RETURNS
--   the reply of rsmq_get_attributes
-- @include check_writes
-- @include rsmq_attributes
local stored = redis.call('HMGET', KEYS[2], 'vt', 'delay', 'maxsize')
if not (stored[1] or stored[2] or stored[3]) then return redis.error_reply('CHASQUIRSMQ queueNotFound') end
check_writes(KEYS[1], 'zset')
redis.call('HSET', KEYS[2], 'modified', redis.call('TIME')[1], unpack(ARGV))
return rsmq_attributes(KEYS[1], KEYS[2])
