-- rsmq_receive: receive the first visible message and hide it for its visibility timeout.
--
-- KEYS
--   1    zset
--   2    hash
-- ARGV
--   1    visibility timeout (ms, '': the vt of the queue)
--   2    unit of the stored vt and delay (ms)
-- RETURNS
--   {id, message, receive count, first received (ms)}, or {} if no message is visible
-- @include check_writes
-- @include rsmq_config
-- @include rsmq_receive_first
-- @include now_ms
local config, problem = rsmq_config(KEYS[2], tonumber(ARGV[2]))
if not config then return problem end
local now = now_ms()
local now_text = string.format('%.0f', now)
check_writes(KEYS[1], nil, 'ZADD')
check_writes(KEYS[2], nil, 'HINCRBY', 'HGET', 'HSET')
local message = rsmq_receive_first(KEYS[1], KEYS[2], now_text)
if not message then return {} end
redis.call('ZADD', KEYS[1], string.format('%.0f', now + (tonumber(ARGV[1]) or config.vt)), message[1])
if message[3] == 1 then redis.call('HSET', KEYS[2], message[1] .. ':fr', now_text) end
return message
