-- lease_move_to_dlq: move leased entries to the DLQ, each only if its lease is still valid.
--
-- KEYS
--   1    idempotency marker
--   2    stream
--   3    dlq
--   4    lease deadlines
--   5    lease owners
--   6    lease max_deliveries
--   7..  batch, done bitmap and dead bitmap of each batch part
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2    group
--   3..  per lease: entry id, consumer, deliveries, fencing token (0: shared mode),
--        position of its batch in KEYS (0: none), part with creation time, index, number of fields and values, fields and values
-- RETURNS
--   for each lease: 1 moved, 0 the lease is not valid any more
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
lease_check_call(KEYS[1], KEYS[2], KEYS[5])
check_ack_delete(KEYS[2])
check_writes(KEYS[3], 'stream', 'XADD')
check_writes(KEYS[4], 'zset', 'ZREM')
check_writes(KEYS[5], nil, 'HDEL')
check_writes(KEYS[6], 'hash', 'HDEL')
local reply, i = {}, 3
while i <= #ARGV do
  check_batch_bits(ARGV[i + 4])
  i = i + 8 + tonumber(ARGV[i + 7])
end
i = 3
while i <= #ARGV do
  local id, last = ARGV[i], i + 7 + tonumber(ARGV[i + 7])
  local held = lease_is_held(KEYS[2], ARGV[2], KEYS[5], id, ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
  local deleted = held and ack_delete(KEYS[2], ARGV[2], {id})[1]
  if held and ARGV[i + 3] ~= '0' then lease_clear(KEYS[4], KEYS[5], KEYS[6], id) end
  if deleted then
    redis.call('XADD', KEYS[3], '*', unpack(ARGV, i + 8, last))
    set_batch_bit(ARGV[i + 4], ARGV[i + 5], ARGV[i + 6], true)
  end
  reply[#reply + 1] = deleted and 1 or 0
  i = last + 1
end
return store_reply(KEYS[1], ARGV[1], reply)
