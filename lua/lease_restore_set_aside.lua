-- lease_restore_set_aside: move a blocked entry back to the stream, or to the DLQ (shared mode).
--
-- KEYS
--   1    lease blocked_entries
--   2    stream
--   3    dlq
--   4    dead bitmap
-- ARGV
--   1    id in blocked_entries
--   2    move to the DLQ (1, 0)
--   3    bit of the job in its batch (-1: none)
--   4    TTL of the dead bitmap (ms)
--   5    d
--   6    n
--   7..  fields and values of the dead letter
-- RETURNS
--   1 moved, 0 the entry was not blocked
-- @include add_entry
redis.call('XLEN', KEYS[3]) -- Fail on a key of the wrong type before the first write.
if redis.call('XDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
if ARGV[2] == '0' then
  add_entry(KEYS[2], ARGV[5], ARGV[6])
  return 1
end
redis.call('XADD', KEYS[3], '*', unpack(ARGV, 7))
if ARGV[3] ~= '-1' then
  redis.call('SETBIT', KEYS[4], ARGV[3], 1)
  redis.call('PEXPIRE', KEYS[4], ARGV[4])
end
return 1
