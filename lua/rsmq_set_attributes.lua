-- rsmq_set_attributes: change attributes of an RSMQ queue that exists.
-- KEYS  1 zset  2 hash
-- ARGV  1.. name and value of each attribute, in the order they are written
-- returns what rsmq_get_attributes returns
-- @include rsmq_attributes
local found = redis.call('HMGET', KEYS[2], 'vt', 'delay', 'maxsize')
if not (found[1] or found[2] or found[3]) then return redis.error_reply('CHASQUIRSMQ queueNotFound') end
redis.call('HSET', KEYS[2], 'modified', redis.call('TIME')[1], unpack(ARGV))
return rsmq_attributes(KEYS[1], KEYS[2])
