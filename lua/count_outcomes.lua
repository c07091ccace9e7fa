-- count_outcomes: add to the counters of one minute. A counter of a job name is added to the counter of all other names if
-- the minute has too many of them.
--
-- KEYS
--   1    idempotency marker
--   2    counters of the minute
-- ARGV
--   1    TTL of the marker (ms)
--   2    TTL of the counters (ms)
--   3    maximum number of counters
--   4..  per counter: field, field of the other names, increment
-- RETURNS
--   1 counted, 0 this call was executed before
-- @include check_writes
check_writes(KEYS[2], 'hash', 'HINCRBY', 'HLEN', 'HEXISTS', 'PEXPIRE')
if not redis.call('SET', KEYS[1], 1, 'NX', 'PX', ARGV[1]) then return 0 end
local count, limit = redis.call('HLEN', KEYS[2]), tonumber(ARGV[3])
for i = 4, #ARGV, 3 do
  local field = ARGV[i]
  if redis.call('HEXISTS', KEYS[2], field) == 0 then
    if count >= limit then field = ARGV[i + 1] else count = count + 1 end
  end
  redis.call('HINCRBY', KEYS[2], field, ARGV[i + 2])
end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return 1
