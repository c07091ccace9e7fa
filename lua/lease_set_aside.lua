-- lease_set_aside: block leased entries in shared mode. They leave the stream, because a worker would claim them there.
--
-- KEYS
--   1    idempotency marker
--   2    stream
--   3    lease blocked_entries
--   4    lease owners
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2    group
--   3..  per lease: entry id, consumer, deliveries, number of fields and values, fields and values
-- RETURNS
--   for each lease: 1 moved, 0 the lease is not valid any more
-- @include check_writes
-- @include check_ack_delete
-- @include lease_check_call
-- @include cached_reply
-- @include store_reply
-- @include ack_delete
-- @include lease_is_held
local first_reply = cached_reply(KEYS[1])
if first_reply then return first_reply end
lease_check_call(KEYS[1], KEYS[2], KEYS[4])
check_ack_delete(KEYS[2])
check_writes(KEYS[3], 'stream', 'XADD')
local reply, i = {}, 3
while i <= #ARGV do
  local last = i + 3 + tonumber(ARGV[i + 3])
  local held = lease_is_held(KEYS[2], ARGV[2], KEYS[4], ARGV[i], ARGV[i + 1], ARGV[i + 2], '0')
  local deleted = held and ack_delete(KEYS[2], ARGV[2], {ARGV[i]})[1]
  if deleted then redis.call('XADD', KEYS[3], '*', unpack(ARGV, i + 4, last)) end
  reply[#reply + 1] = deleted and 1 or 0
  i = last + 1
end
return store_reply(KEYS[1], ARGV[1], reply)
