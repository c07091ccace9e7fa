-- renew_claims: reset the idle time of entries that are still pending for this consumer.
--
-- KEYS
--   1    stream
-- ARGV
--   1    group
--   2    consumer
--   3..  entry ids
-- RETURNS
--   for each entry: 1 renewed, 0 another consumer claimed it or it was acknowledged, 2 still pending for this consumer, but
--   deleted from the stream
local reply = {}
for i = 3, #ARGV do
  local pending, state = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2]), 0
  if pending[1] then
    -- XCLAIM of a deleted entry, for example one that a producer with MAXLEN has trimmed, would remove it from the pending
    -- entries. The outcome of the job, which is still running, could then not be written.
    state = redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i])[1] and 1 or 2
    if state == 1 then redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'JUSTID') end
  end
  reply[i - 2] = state
end
return reply
