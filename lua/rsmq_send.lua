-- rsmq_send: add one message to an RSMQ queue and publish the queue length. A repeated call returns the first
-- reply.
--
-- KEYS
--   1    zset
--   2    hash
--   3    idempotency marker
-- ARGV
--   1    random suffix of the id
--   2    message
--   3    length of the message (UTF-16 code units)
--   4    delay (ms, '': the delay of the queue)
--   5    unit of the stored vt and delay (ms)
--   6    channel ('': none)
--   7    TTL of the idempotency marker (ms)
-- RETURNS
--   the message id
-- @include check_writes
-- @include check_rsmq_add
-- @include rsmq_config
-- @include rsmq_add
-- @include base36
local cached_reply = redis.call('GET', KEYS[3])
if cached_reply then return cached_reply end
local config, problem = rsmq_config(KEYS[2], tonumber(ARGV[5]))
if not config then return problem end
if config.maxsize ~= -1 and tonumber(ARGV[3]) > config.maxsize then
  return redis.error_reply('CHASQUIRSMQ messageTooLong')
end
local time = redis.call('TIME')
local id = base36(time[1] * 1000000 + time[2]) .. ARGV[1]
local visible_at = time[1] * 1000 + math.floor(time[2] / 1000) + (tonumber(ARGV[4]) or config.delay)
check_rsmq_add(KEYS[1], KEYS[2], ARGV[6])
check_writes(KEYS[3], nil, 'SET')
rsmq_add(KEYS[1], KEYS[2], id, ARGV[2], visible_at, ARGV[6])
redis.call('SET', KEYS[3], id, 'PX', ARGV[7])
return id
