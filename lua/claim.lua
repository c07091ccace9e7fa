-- claim: claim idle entries, with a reply in the shape of XREADGROUP ... CLAIM (portable dialect only).
--
-- KEYS
--   1    stream
-- ARGV
--   1    group
--   2    consumer
--   3    minimum idle time (ms)
--   4    maximum number of entries
-- RETURNS
--   for each entry: {id, fields, idle (ms), previous deliveries}
local entries = {}
local pending_entries = redis.call('XPENDING', KEYS[1], ARGV[1], 'IDLE', ARGV[3], '-', '+', ARGV[4])
for _, pending in ipairs(pending_entries) do
  local claimed = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], pending[1])
  if claimed[1] and claimed[1][2] then
    entries[#entries + 1] = {claimed[1][1], claimed[1][2], pending[3], pending[4]}
  else
    -- The entry was deleted or trimmed while it was pending.
    redis.call('XACK', KEYS[1], ARGV[1], pending[1])
  end
end
return entries
