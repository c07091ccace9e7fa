-- renew_claims: reset the idle time of entries that are still pending for this consumer.
--
-- KEYS
--   1    stream
-- ARGV
--   1    group
--   2    consumer
--   3..  entry ids
-- RETURNS
--   for each entry: 1 renewed, 0 another consumer claimed it or it was acknowledged
local reply = {}
for i = 3, #ARGV do
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])
  if pending[1] then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'JUSTID')
  end
  reply[i - 2] = pending[1] and 1 or 0
end
return reply
