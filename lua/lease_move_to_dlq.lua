-- lease_move_to_dlq: move leased entries to the DLQ, each only if its lease is still valid.
--
-- KEYS
--   1    stream
--   2    dlq
--   3    lease deadlines
--   4    lease owners
--   5    lease max_deliveries
--   6..  dead bitmaps
-- ARGV
--   1    group
--   2    TTL of the dead bitmaps (ms)
--   3..  per lease: entry id, consumer, deliveries, fencing token (0: shared mode),
--        position of its dead bitmap in KEYS (0: none), bit, number of fields and values, fields and values
-- RETURNS
--   for each lease: 1 moved, 0 the lease is not valid any more
-- @include ack_delete
-- @include lease_is_held
-- @include lease_clear
redis.call('XLEN', KEYS[2]) -- Fail on a key of the wrong type before the first write.
local reply, i = {}, 3
while i <= #ARGV do
  local id, last = ARGV[i], i + 6 + tonumber(ARGV[i + 6])
  local held = lease_is_held(KEYS[1], ARGV[1], KEYS[4], id, ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
  local deleted = held and ack_delete(KEYS[1], ARGV[1], {id})[1]
  if held and ARGV[i + 3] ~= '0' then lease_clear(KEYS[3], KEYS[4], KEYS[5], id) end
  if deleted then
    redis.call('XADD', KEYS[2], '*', unpack(ARGV, i + 7, last))
    if ARGV[i + 4] ~= '0' then
      local bitmap = KEYS[tonumber(ARGV[i + 4])]
      redis.call('SETBIT', bitmap, ARGV[i + 5], 1)
      redis.call('PEXPIRE', bitmap, ARGV[2])
    end
  end
  reply[#reply + 1] = deleted and 1 or 0
  i = last + 1
end
return reply
