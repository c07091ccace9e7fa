-- rsmq_receive: hand out the first visible message and hide it for a while.
-- KEYS  1 zset  2 hash
-- ARGV  1 hidden for (ms, '': the queue's vt)  2 ms in one stored vt or delay
-- returns {id, message, receive count, first received (ms)}, or {} where none is visible
-- @include rsmq_config
-- @include rsmq_receive_first
-- @include clock
local config, problem = rsmq_config(KEYS[2], tonumber(ARGV[2]))
if not config then return problem end
local now = now_ms()
local text = string.format('%.0f', now)
local message = rsmq_receive_first(KEYS[1], KEYS[2], text)
if not message then return {} end
redis.call('ZADD', KEYS[1], string.format('%.0f', now + (tonumber(ARGV[1]) or config.vt)), message[1])
if message[3] == 1 then redis.call('HSET', KEYS[2], message[1] .. ':fr', text) end
return message
