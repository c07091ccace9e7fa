-- lease_restore_set_aside: move a blocked entry back to the stream, or to the DLQ (shared mode).
--
-- KEYS
--   1    idempotency marker
--   2    lease blocked_entries
--   3    stream
--   4    dlq
--   5..  batch, done bitmap and dead bitmap, if the job belongs to a batch
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2    id in blocked_entries
--   3    move to the DLQ (1, 0)
--   4    position of the batch in KEYS (0: none)
--   5    part with creation time
--   6    index
--   7    d
--   8    n
--   9..  fields and values of the dead letter
-- RETURNS
--   1 moved, 0 the entry was not blocked
-- @include check_writes
-- @include check_batch_bits
-- @include set_batch_bit
-- @include cached_reply
-- @include store_reply
-- @include add_entry
local first_reply = cached_reply(KEYS[1])
if first_reply then return first_reply end
check_writes(KEYS[1], nil, 'SET')
for i = 3, 4 do check_writes(KEYS[i], 'stream', 'XADD') end
check_batch_bits(ARGV[4])
if redis.call('XDEL', KEYS[2], ARGV[2]) == 0 then return 0 end
if ARGV[3] == '0' then
  add_entry(KEYS[3], ARGV[7], ARGV[8])
  return store_reply(KEYS[1], ARGV[1], 1)
end
redis.call('XADD', KEYS[4], '*', unpack(ARGV, 9))
set_batch_bit(ARGV[4], ARGV[5], ARGV[6], true)
return store_reply(KEYS[1], ARGV[1], 1)
