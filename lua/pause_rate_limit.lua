-- pause_rate_limit: allow no reservation of a rate limit for some time. A shorter pause does not end a longer one.
--
-- KEYS
--   1    rate limit
-- ARGV
--   1    duration (ms)
-- RETURNS
--   1
-- @include check_writes
check_writes(KEYS[1], 'hash', 'HSET', 'HGET', 'PTTL', 'PEXPIRE')
local time = redis.call('TIME')
local paused_until = time[1] * 1000000 + time[2] + ARGV[1] * 1000
if paused_until > (tonumber(redis.call('HGET', KEYS[1], 'paused_until')) or 0) then
  redis.call('HSET', KEYS[1], 'paused_until', string.format('%.0f', paused_until))
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(redis.call('PTTL', KEYS[1]), ARGV[1] + 1000)))
end
return 1
