-- Claim idle entries and read new ones in one command. XREADGROUP cannot limit the new entries separately, so the
-- portable implementation is used if max_new is lower than count, and if nothing may be claimed (min_idle is nil).
-- Requires claim_then_read.
local function read_entries(stream, group, consumer, min_idle, count, max_new)
  if not min_idle or max_new < count then return claim_then_read(stream, group, consumer, min_idle, count, max_new) end
  local streams = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', count, 'CLAIM', min_idle, 'STREAMS', stream, '>')
  return streams and streams[1] and streams[1][2] or {}
end
