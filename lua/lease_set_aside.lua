-- lease_set_aside: block leased entries in shared mode. They leave the stream, because a worker would claim them there.
--
-- KEYS
--   1    stream
--   2    lease blocked_entries
--   3    lease owners
-- ARGV
--   1    group
--   2..  per lease: entry id, consumer, deliveries, number of fields and values, fields and values
-- RETURNS
--   for each lease: 1 moved, 0 the lease is not valid any more
-- @include ack_delete
-- @include lease_is_held
redis.call('XLEN', KEYS[2]) -- Fail on a key of the wrong type before the first write.
local reply, i = {}, 2
while i <= #ARGV do
  local last = i + 3 + tonumber(ARGV[i + 3])
  local held = lease_is_held(KEYS[1], ARGV[1], KEYS[3], ARGV[i], ARGV[i + 1], ARGV[i + 2], '0')
  local deleted = held and ack_delete(KEYS[1], ARGV[1], {ARGV[i]})[1]
  if deleted then redis.call('XADD', KEYS[2], '*', unpack(ARGV, i + 4, last)) end
  reply[#reply + 1] = deleted and 1 or 0
  i = last + 1
end
return reply
