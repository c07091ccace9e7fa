-- rsmq_peek: read messages in the order in which they will be received, without changing anything.
--
-- KEYS
--   1    zset
--   2    hash
-- ARGV
--   1    maximum number of messages
--   2    include hidden messages (1, 0)
--   3    unit of the stored vt and delay (ms)
-- RETURNS
--   for each message: {id, message, receive count, first received (ms), visible at (ms)}
-- @include rsmq_config
-- @include now_ms
local config, problem = rsmq_config(KEYS[2], tonumber(ARGV[3]))
if not config then return problem end
local max_score = ARGV[2] == '1' and '+inf' or string.format('%.0f', now_ms())
local ids_and_scores = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', max_score, 'WITHSCORES', 'LIMIT', 0, ARGV[1])
local messages = {}
for i = 1, #ids_and_scores, 2 do
  local id = ids_and_scores[i]
  local fields = redis.call('HMGET', KEYS[2], id, id .. ':rc', id .. ':fr')
  messages[#messages + 1] = {id, fields[1], fields[2], fields[3], ids_and_scores[i + 1]}
end
return messages
