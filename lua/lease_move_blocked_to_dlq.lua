-- lease_move_blocked_to_dlq: move a blocked entry to the DLQ (exclusive mode). An ordered queue continues after
-- it.
--
-- KEYS
--   1    idempotency marker
--   2    stream
--   3    dlq
--   4    lease blocked
--   5    lease max_deliveries
--   6..  batch, done bitmap and dead bitmap, if the job belongs to a batch
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2    group
--   3    entry id
--   4    position of the batch in KEYS (0: none)
--   5    part with creation time
--   6    index
--   7..  fields and values of the dead letter
-- RETURNS
--   1 moved, 0 the entry was not blocked
-- @include check_writes
-- @include check_ack_delete
-- @include check_batch_bits
-- @include set_batch_bit
-- @include cached_reply
-- @include store_reply
-- @include ack_delete
local first_reply = cached_reply(KEYS[1])
if first_reply then return first_reply end
check_writes(KEYS[1], nil, 'SET')
check_writes(KEYS[2], 'stream')
check_ack_delete(KEYS[2])
check_writes(KEYS[3], 'stream', 'XADD')
check_writes(KEYS[5], 'hash', 'HDEL')
check_batch_bits(ARGV[4])
if redis.call('ZREM', KEYS[4], ARGV[3]) == 0 then return 0 end
redis.call('HDEL', KEYS[5], ARGV[3])
if not ack_delete(KEYS[2], ARGV[2], {ARGV[3]})[1] then return 0 end
redis.call('XADD', KEYS[3], '*', unpack(ARGV, 7))
set_batch_bit(ARGV[4], ARGV[5], ARGV[6], true)
return store_reply(KEYS[1], ARGV[1], 1)
