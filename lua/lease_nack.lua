-- lease_nack: return leased entries, available again after a delay. Their ids, order and delivery counts do not
-- change.
--
-- KEYS
--   1    stream
--   2    lease deadlines
--   3    lease redeliver_at
--   4    lease owners
-- ARGV
--   1    group
--   2    claim after (ms)
--   3    delay (ms)
--   4    ordered (1, 0)
--   5..  per lease: entry id, consumer, deliveries, fencing token (0: shared mode)
-- RETURNS
--   for each lease: 1 returned, 0 the lease is not valid any more
-- @include now_ms
-- @include entry_before
-- @include lease_is_held
-- @include lease_release_following
local reply, delay = {}, tonumber(ARGV[3])
local available_at = string.format('%.0f', now_ms() + delay)
for i = 5, #ARGV, 4 do
  local id, consumer, fencing_token = ARGV[i], ARGV[i + 1], ARGV[i + 3]
  local held = lease_is_held(KEYS[1], ARGV[1], KEYS[4], id, consumer, ARGV[i + 2], fencing_token)
  if held and fencing_token == '0' then
    -- Give the entry to another owner, so that this lease cannot be used again. Set IDLE so that the entry becomes
    -- claimable when the delay is over.
    redis.call('XCLAIM', KEYS[1], ARGV[1], '-nacked', 0, id, 'IDLE', math.max(0, tonumber(ARGV[2]) - delay), 'JUSTID')
  elseif held then
    redis.call('ZREM', KEYS[2], id)
    redis.call('HDEL', KEYS[4], id)
    redis.call('ZADD', KEYS[3], available_at, id)
  end
  reply[#reply + 1] = held and 1 or 0
end
for i = 5, #ARGV, 4 do
  if ARGV[4] == '1' and reply[(i - 1) / 4] == 1 then
    lease_release_following(KEYS[1], ARGV[1], KEYS[2], KEYS[4], KEYS[3], ARGV[i + 1], ARGV[i])
  end
end
return reply
