-- Claim idle entries first, then read new ones. Returns at most count entries in the shape of XREADGROUP ... CLAIM:
-- {id, fields, idle (ms), previous deliveries}. At most max_new of them are new.
local function lease_claim_then_read(stream, group, consumer, min_idle, count, max_new)
  local entries = {}
  for _, pending in ipairs(redis.call('XPENDING', stream, group, 'IDLE', min_idle, '-', '+', count)) do
    local claimed = redis.call('XCLAIM', stream, group, consumer, min_idle, pending[1])[1]
    if claimed and claimed[2] then
      entries[#entries + 1] = {claimed[1], claimed[2], pending[3], pending[4]}
    else
      redis.call('XACK', stream, group, pending[1]) -- The entry was deleted while it was pending.
    end
  end
  local new_count = math.min(count - #entries, max_new)
  if new_count > 0 then
    local streams = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', new_count, 'STREAMS', stream, '>')
    for _, entry in ipairs(streams and streams[1] and streams[1][2] or {}) do
      entries[#entries + 1] = {entry[1], entry[2], 0, 0}
    end
  end
  return entries
end
