-- rsmq_peek: show messages in the order they will be received, and change nothing.
-- KEYS  1 zset  2 hash
-- ARGV  1 at most  2 hidden ones too (1) or not (0)  3 ms in one stored vt or delay
-- returns for each message {id, message, receive count, first received (ms), visible at (ms)}
-- @include rsmq_config
-- @include clock
local config, problem = rsmq_config(KEYS[2], tonumber(ARGV[3]))
if not config then return problem end
local till = ARGV[2] == '1' and '+inf' or string.format('%.0f', now_ms())
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', till, 'WITHSCORES', 'LIMIT', 0, ARGV[1])
local messages = {}
for i = 1, #found, 2 do
  local id = found[i]
  local kept = redis.call('HMGET', KEYS[2], id, id .. ':rc', id .. ':fr')
  messages[#messages + 1] = {id, kept[1], kept[2], kept[3], found[i + 1]}
end
return messages
