-- lease_nack: return leased entries, available again after a delay. Their ids, order and delivery counts do not
-- change.
--
-- KEYS
--   1    idempotency marker
--   2    stream
--   3    lease deadlines
--   4    lease redeliver_at
--   5    lease owners
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2    group
--   3    claim after (ms)
--   4    delay (ms)
--   5    ordered (1, 0)
--   6..  per lease: entry id, consumer, deliveries, fencing token (0: shared mode)
-- RETURNS
--   for each lease: 1 returned, 0 the lease is not valid any more
-- @include check_writes
-- @include lease_check_call
-- @include cached_reply
-- @include store_reply
-- @include now_ms
-- @include entry_before
-- @include lease_is_held
-- @include lease_release_following
local first_reply = cached_reply(KEYS[1])
if first_reply then return first_reply end
lease_check_call(KEYS[1], KEYS[2], KEYS[5])
check_writes(KEYS[2], nil, 'XCLAIM')
check_writes(KEYS[3], 'zset', 'ZREM', 'ZRANGE')
check_writes(KEYS[4], 'zset', 'ZADD')
check_writes(KEYS[5], nil, 'HDEL')
local reply, delay, lowest = {}, tonumber(ARGV[4]), nil
local available_at = string.format('%.0f', now_ms() + delay)
for i = 6, #ARGV, 4 do
  local id, consumer, fencing_token = ARGV[i], ARGV[i + 1], ARGV[i + 3]
  local held = lease_is_held(KEYS[2], ARGV[2], KEYS[5], id, consumer, ARGV[i + 2], fencing_token)
  if held and fencing_token == '0' then
    -- Give the entry to another owner, so that this lease cannot be used again. Set IDLE so that the entry becomes
    -- claimable when the delay is over.
    redis.call('XCLAIM', KEYS[2], ARGV[2], '-nacked', 0, id, 'IDLE', math.max(0, tonumber(ARGV[3]) - delay), 'JUSTID')
  elseif held then
    redis.call('ZREM', KEYS[3], id)
    redis.call('HDEL', KEYS[5], id)
    redis.call('ZADD', KEYS[4], available_at, id)
    if not lowest or entry_before(id, lowest) then lowest = id end
  end
  reply[#reply + 1] = held and 1 or 0
end
if ARGV[5] == '1' and lowest then lease_release_following(KEYS[2], ARGV[2], KEYS[3], KEYS[5], KEYS[4], lowest) end
return store_reply(KEYS[1], ARGV[1], reply)
