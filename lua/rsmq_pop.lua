-- rsmq_pop: receive the first visible message and delete it.
--
-- KEYS
--   1    zset
--   2    hash
-- ARGV
--   1    unit of the stored vt and delay (ms)
-- RETURNS
--   {id, message, receive count, first received (ms)}, or {} if no message is visible
-- @include check_writes
-- @include rsmq_config
-- @include rsmq_receive_first
-- @include rsmq_remove
-- @include now_ms
local config, problem = rsmq_config(KEYS[2], tonumber(ARGV[1]))
if not config then return problem end
check_writes(KEYS[1], nil, 'ZREM')
check_writes(KEYS[2], nil, 'HINCRBY', 'HGET', 'HDEL')
local message = rsmq_receive_first(KEYS[1], KEYS[2], string.format('%.0f', now_ms()))
if not message then return {} end
rsmq_remove(KEYS[1], KEYS[2], message[1])
return message
