#!lua flags=allow-oom
-- lease_ack: acknowledge leased entries and delete them, each only if its lease is still valid.
--
-- KEYS
--   1    idempotency marker
--   2    stream
--   3    lease deadlines
--   4    lease owners
--   5    lease max_deliveries
--   6..  batch, done bitmap and dead bitmap of each batch part
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2    group
--   3..  per lease: entry id, consumer, deliveries, fencing token (0: shared mode),
--        position of its batch in KEYS (0: none), part with creation time, index
-- RETURNS
--   for each lease: 1 acknowledged, 0 the lease is not valid any more
-- @include check_writes
-- @include check_ack_delete
-- @include check_batch_bits
-- @include set_batch_bit
-- @include lease_check_call
-- @include cached_reply
-- @include store_reply
-- @include ack_delete
-- @include lease_is_held
-- @include lease_clear
local first_reply = cached_reply(KEYS[1])
if first_reply then return first_reply end
lease_check_call(KEYS[1], KEYS[2], KEYS[4])
check_ack_delete(KEYS[2])
check_writes(KEYS[3], 'zset', 'ZREM')
check_writes(KEYS[4], nil, 'HDEL')
check_writes(KEYS[5], 'hash', 'HDEL')
for i = 3, #ARGV, 7 do check_batch_bits(ARGV[i + 4]) end
local reply = {}
for i = 3, #ARGV, 7 do
  local id, held = ARGV[i], lease_is_held(KEYS[2], ARGV[2], KEYS[4], ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
  local deleted = held and ack_delete(KEYS[2], ARGV[2], {id})[1]
  if held and ARGV[i + 3] ~= '0' then lease_clear(KEYS[3], KEYS[4], KEYS[5], id) end
  if deleted then set_batch_bit(ARGV[i + 4], ARGV[i + 5], ARGV[i + 6], false) end
  reply[#reply + 1] = deleted and 1 or 0
end
return store_reply(KEYS[1], ARGV[1], reply)
