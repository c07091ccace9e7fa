-- lease_extend: extend leases that are still valid. The new duration starts now.
--
-- KEYS
--   1    idempotency marker
--   2    stream
--   3    lease deadlines
--   4    lease owners
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2    group
--   3    claim after (ms)
--   4    lease duration (ms)
--   5..  per lease: entry id, consumer, deliveries, fencing token (0: shared mode)
-- RETURNS
--   {deadline (ms), then for each lease: 1 extended, 0 the lease is not valid any more}
-- @include check_writes
-- @include lease_check_call
-- @include cached_reply
-- @include store_reply
-- @include now_ms
-- @include lease_is_held
local first_reply = cached_reply(KEYS[1])
if first_reply then return first_reply end
lease_check_call(KEYS[1], KEYS[2], KEYS[4])
check_writes(KEYS[2], nil, 'XRANGE', 'XCLAIM')
check_writes(KEYS[3], 'zset', 'ZADD')
local deadline = now_ms() + tonumber(ARGV[4])
local reply, idle = {deadline}, math.max(0, tonumber(ARGV[3]) - tonumber(ARGV[4]))
for i = 5, #ARGV, 4 do
  local id, fencing_token = ARGV[i], ARGV[i + 3]
  local held = lease_is_held(KEYS[2], ARGV[2], KEYS[4], id, ARGV[i + 1], ARGV[i + 2], fencing_token)
  if held and fencing_token == '0' then
    -- XCLAIM would remove an entry that was trimmed, and the consumer could not acknowledge it any more.
    if redis.call('XRANGE', KEYS[2], id, id)[1] then
      redis.call('XCLAIM', KEYS[2], ARGV[2], ARGV[i + 1], 0, id, 'IDLE', idle, 'JUSTID')
    end
  elseif held then
    redis.call('ZADD', KEYS[3], string.format('%.0f', deadline), id)
  end
  reply[#reply + 1] = held and 1 or 0
end
return store_reply(KEYS[1], ARGV[1], reply)
