-- rsmq_send: put one message on an RSMQ queue and tell those who listen; a repeated send is answered, not repeated.
-- KEYS  1 zset  2 hash  3 once
-- ARGV  1 random end of the id  2 message  3 its length (UTF-16 units)  4 delay (ms, '': the queue's)  5 ms in one stored vt or delay  6 channel ('': none)  7 life of once (ms)
-- returns the id
-- @include rsmq_config
-- @include base36
local said = redis.call('GET', KEYS[3])
if said then return said end
local config, problem = rsmq_config(KEYS[2], tonumber(ARGV[5]))
if not config then return problem end
if config.maxsize ~= -1 and tonumber(ARGV[3]) > config.maxsize then
  return redis.error_reply('CHASQUIRSMQ messageTooLong')
end
local time = redis.call('TIME')
local id = base36(time[1] * 1000000 + time[2]) .. ARGV[1]
local due = time[1] * 1000 + math.floor(time[2] / 1000) + (tonumber(ARGV[4]) or config.delay)
redis.call('ZADD', KEYS[1], string.format('%.0f', due), id)
redis.call('HSET', KEYS[2], id, ARGV[2])
redis.call('HINCRBY', KEYS[2], 'totalsent', 1)
redis.call('SET', KEYS[3], id, 'PX', ARGV[7])
if ARGV[6] ~= '' then redis.call('PUBLISH', ARGV[6], redis.call('ZCARD', KEYS[1])) end
return id
