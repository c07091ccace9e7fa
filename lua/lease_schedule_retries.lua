-- lease_schedule_retries: acknowledge leased entries and add their jobs to the delayed set, each only if its
-- lease is still valid.
--
-- KEYS
--   1    idempotency marker
--   2    stream
--   3    delayed
--   4    lease owners
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2    group
--   3..  per lease: entry id, consumer, deliveries, run at (ms), delayed member
-- RETURNS
--   for each lease: 1 scheduled, 0 the lease is not valid any more
-- @include check_writes
-- @include check_ack_delete
-- @include lease_check_call
-- @include cached_reply
-- @include store_reply
-- @include ack_delete
-- @include lease_is_held
-- @include add_delayed
local first_reply = cached_reply(KEYS[1])
if first_reply then return first_reply end
lease_check_call(KEYS[1], KEYS[2], KEYS[4])
check_ack_delete(KEYS[2])
check_writes(KEYS[3], 'zset', 'ZADD')
local reply = {}
for i = 3, #ARGV, 5 do
  local held = lease_is_held(KEYS[2], ARGV[2], KEYS[4], ARGV[i], ARGV[i + 1], ARGV[i + 2], '0')
  local deleted = held and ack_delete(KEYS[2], ARGV[2], {ARGV[i]})[1]
  if deleted then add_delayed(KEYS[3], ARGV[i + 3], ARGV[i + 4]) end
  reply[#reply + 1] = deleted and 1 or 0
end
return store_reply(KEYS[1], ARGV[1], reply)
