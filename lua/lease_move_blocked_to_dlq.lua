-- lease_move_blocked_to_dlq: move a blocked entry to the DLQ (exclusive mode). An ordered queue continues after
-- it.
--
-- KEYS
--   1    stream
--   2    dlq
--   3    lease blocked
--   4    lease max_deliveries
--   5    dead bitmap
-- ARGV
--   1    group
--   2    entry id
--   3    bit of the job in its batch (-1: none)
--   4    TTL of the dead bitmap (ms)
--   5..  fields and values of the dead letter
-- RETURNS
--   1 moved, 0 the entry was not blocked
-- @include ack_delete
redis.call('XLEN', KEYS[2]) -- Fail on a key of the wrong type before the first write.
if redis.call('ZREM', KEYS[3], ARGV[2]) == 0 then return 0 end
redis.call('HDEL', KEYS[4], ARGV[2])
if not ack_delete(KEYS[1], ARGV[1], {ARGV[2]})[1] then return 0 end
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 5))
if ARGV[3] ~= '-1' then
  redis.call('SETBIT', KEYS[5], ARGV[3], 1)
  redis.call('PEXPIRE', KEYS[5], ARGV[4])
end
return 1
