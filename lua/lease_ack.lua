#!lua flags=allow-oom
-- lease_ack: acknowledge leased entries and delete them, each only if its lease is still valid.
--
-- KEYS
--   1    stream
--   2    lease deadlines
--   3    lease owners
--   4    lease max_deliveries
--   5..  done bitmaps
-- ARGV
--   1    group
--   2    TTL of the bitmaps (ms)
--   3..  per lease: entry id, consumer, deliveries, fencing token (0: shared mode),
--        position of its bitmap in KEYS (0: none), bit
-- RETURNS
--   for each lease: 1 acknowledged, 0 the lease is not valid any more
-- @include ack_delete
-- @include lease_is_held
-- @include lease_clear
local reply = {}
for i = 3, #ARGV, 6 do
  local id, held = ARGV[i], lease_is_held(KEYS[1], ARGV[1], KEYS[3], ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
  local deleted = held and ack_delete(KEYS[1], ARGV[1], {id})[1]
  if held and ARGV[i + 3] ~= '0' then lease_clear(KEYS[2], KEYS[3], KEYS[4], id) end
  if deleted and ARGV[i + 4] ~= '0' then
    local bitmap = KEYS[tonumber(ARGV[i + 4])]
    redis.call('SETBIT', bitmap, ARGV[i + 5], 1)
    redis.call('PEXPIRE', bitmap, ARGV[2])
  end
  reply[#reply + 1] = deleted and 1 or 0
end
return reply
