-- lease_block: block leased entries until they are unblocked (exclusive mode). An ordered queue stops at a
-- blocked entry.
--
-- KEYS
--   1    idempotency marker
--   2    stream
--   3    lease deadlines
--   4    lease redeliver_at
--   5    lease owners
--   6    lease blocked
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2    group
--   3    ordered (1, 0)
--   4..  per lease: entry id, consumer, deliveries, fencing token
-- RETURNS
--   for each lease: 1 blocked, 0 the lease is not valid any more
-- @include check_writes
-- @include lease_check_call
-- @include cached_reply
-- @include store_reply
-- @include entry_before
-- @include lease_is_held
-- @include lease_release_following
local first_reply = cached_reply(KEYS[1])
if first_reply then return first_reply end
lease_check_call(KEYS[1], KEYS[2], KEYS[5])
check_writes(KEYS[2], nil, 'XCLAIM')
check_writes(KEYS[3], 'zset', 'ZREM', 'ZRANGE')
check_writes(KEYS[5], nil, 'HDEL')
for _, key in ipairs({KEYS[4], KEYS[6]}) do check_writes(key, 'zset', 'ZADD') end
local reply, lowest = {}, nil
for i = 4, #ARGV, 4 do
  local id = ARGV[i]
  local held = lease_is_held(KEYS[2], ARGV[2], KEYS[5], id, ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
  if held then
    redis.call('ZREM', KEYS[3], id)
    redis.call('HDEL', KEYS[5], id)
    redis.call('ZADD', KEYS[6], ARGV[i + 2], id)
    if not lowest or entry_before(id, lowest) then lowest = id end
  end
  reply[#reply + 1] = held and 1 or 0
end
if ARGV[3] == '1' and lowest then lease_release_following(KEYS[2], ARGV[2], KEYS[3], KEYS[5], KEYS[4], lowest) end
return store_reply(KEYS[1], ARGV[1], reply)
