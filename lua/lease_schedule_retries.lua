-- lease_schedule_retries: acknowledge leased entries and add their jobs to the delayed set, each only if its
-- lease is still valid.
--
-- KEYS
--   1    stream
--   2    delayed
--   3    lease owners
-- ARGV
--   1    group
--   2..  per lease: entry id, consumer, deliveries, run at (ms), delayed member
-- RETURNS
--   for each lease: 1 scheduled, 0 the lease is not valid any more
-- @include ack_delete
-- @include lease_is_held
redis.call('ZCARD', KEYS[2]) -- Fail on a key of the wrong type before the first write.
local reply = {}
for i = 2, #ARGV, 5 do
  local held = lease_is_held(KEYS[1], ARGV[1], KEYS[3], ARGV[i], ARGV[i + 1], ARGV[i + 2], '0')
  local deleted = held and ack_delete(KEYS[1], ARGV[1], {ARGV[i]})[1]
  if deleted then redis.call('ZADD', KEYS[2], ARGV[i + 3], ARGV[i + 4]) end
  reply[#reply + 1] = deleted and 1 or 0
end
return reply
