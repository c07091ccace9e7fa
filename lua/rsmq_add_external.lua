-- rsmq_add_external: put a message that comes from another server on an RSMQ queue, if it did not come before.
-- KEYS  1 zset  2 hash  3 marker
-- ARGV  1 message id  2 message  3 its length (UTF-16 units)  4 ms in one stored vt or delay  5 channel ('': none)  6 life of the marker (ms)
-- returns 1 put, 0 it came before, -1 too long for the queue
-- @include clock
-- @include rsmq_config
-- @include rsmq_add
local config, problem = rsmq_config(KEYS[2], tonumber(ARGV[4]))
if not config then return problem end
if redis.call('EXISTS', KEYS[3]) == 1 then return 0 end
if config.maxsize ~= -1 and tonumber(ARGV[3]) > config.maxsize then return -1 end
rsmq_add(KEYS[1], KEYS[2], ARGV[1], ARGV[2], now_ms() + config.delay, ARGV[5])
redis.call('SET', KEYS[3], 1, 'PX', ARGV[6])
return 1
