-- lease_extend: extend leases that are still valid. The new duration starts now.
--
-- KEYS
--   1    stream
--   2    lease deadlines
--   3    lease owners
-- ARGV
--   1    group
--   2    claim after (ms)
--   3    lease duration (ms)
--   4..  per lease: entry id, consumer, deliveries, fencing token (0: shared mode)
-- RETURNS
--   {deadline (ms), then for each lease: 1 extended, 0 the lease is not valid any more}
-- @include now_ms
-- @include lease_is_held
local deadline = now_ms() + tonumber(ARGV[3])
local reply, idle = {deadline}, math.max(0, tonumber(ARGV[2]) - tonumber(ARGV[3]))
for i = 4, #ARGV, 4 do
  local id, fencing_token = ARGV[i], ARGV[i + 3]
  local held = lease_is_held(KEYS[1], ARGV[1], KEYS[3], id, ARGV[i + 1], ARGV[i + 2], fencing_token)
  if held and fencing_token == '0' then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[i + 1], 0, id, 'IDLE', idle, 'JUSTID')
  elseif held then
    redis.call('ZADD', KEYS[2], string.format('%.0f', deadline), id)
  end
  reply[#reply + 1] = held and 1 or 0
end
return reply
