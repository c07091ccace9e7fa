-- lease_block: block leased entries until they are unblocked (exclusive mode). An ordered queue stops at a
-- blocked entry.
--
-- KEYS
--   1    stream
--   2    lease deadlines
--   3    lease redeliver_at
--   4    lease owners
--   5    lease blocked
-- ARGV
--   1    group
--   2    ordered (1, 0)
--   3..  per lease: entry id, consumer, deliveries, fencing token
-- RETURNS
--   for each lease: 1 blocked, 0 the lease is not valid any more
-- @include entry_before
-- @include lease_is_held
-- @include lease_release_following
local reply = {}
for i = 3, #ARGV, 4 do
  local id, consumer = ARGV[i], ARGV[i + 1]
  local held = lease_is_held(KEYS[1], ARGV[1], KEYS[4], id, consumer, ARGV[i + 2], ARGV[i + 3])
  if held then
    redis.call('ZREM', KEYS[2], id)
    redis.call('HDEL', KEYS[4], id)
    redis.call('ZADD', KEYS[5], ARGV[i + 2], id)
    if ARGV[2] == '1' then lease_release_following(KEYS[1], ARGV[1], KEYS[2], KEYS[4], KEYS[3], consumer, id) end
  end
  reply[#reply + 1] = held and 1 or 0
end
return reply
