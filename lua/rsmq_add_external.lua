-- rsmq_add_external: add a message from another server to an RSMQ queue, once per marker.
--
-- KEYS
--   1    zset
--   2    hash
--   3    idempotency marker
-- ARGV
--   1    message id
--   2    message
--   3    length of the message (UTF-16 code units)
--   4    unit of the stored vt and delay (ms)
--   5    channel ('': none)
--   6    TTL of the idempotency marker (ms)
-- RETURNS
--   1 added, 0 it was added before, -1 it is too long for the queue
-- @include check_writes
-- @include check_rsmq_add
-- @include now_ms
-- @include rsmq_config
-- @include rsmq_add
local config, problem = rsmq_config(KEYS[2], tonumber(ARGV[4]))
if not config then return problem end
if redis.call('GET', KEYS[3]) then return 0 end
if config.maxsize ~= -1 and tonumber(ARGV[3]) > config.maxsize then return -1 end
check_rsmq_add(KEYS[1], KEYS[2], ARGV[5])
check_writes(KEYS[3], nil, 'SET')
rsmq_add(KEYS[1], KEYS[2], ARGV[1], ARGV[2], now_ms() + config.delay, ARGV[5])
redis.call('SET', KEYS[3], 1, 'PX', ARGV[6])
return 1
