-- Claim idle entries first, then read new ones. Returns at most count entries in the shape of XREADGROUP ... CLAIM:
-- {id, fields, idle (ms), previous deliveries}. At most max_new of them are new. If min_idle is nil, nothing is claimed. An
-- entry that was deleted or trimmed while it was pending is left to its consumer, which may still acknowledge it;
-- remove_idle_consumers removes it if the consumer is gone.
local function claim_then_read(stream, group, consumer, min_idle, count, max_new)
  local entries, start = {}, '-'
  for _ = 1, min_idle and 10 or 0 do -- Pages; deleted entries must not hide the others.
    local page = redis.call('XPENDING', stream, group, 'IDLE', min_idle, start, '+', count)
    for _, pending in ipairs(page) do
      local id = pending[1]
      start = '(' .. id
      if #entries < count and redis.call('XRANGE', stream, id, id)[1] then
        local claimed = redis.call('XCLAIM', stream, group, consumer, min_idle, id)[1]
        if claimed then entries[#entries + 1] = {id, claimed[2], pending[3], pending[4]} end
      end
    end
    if #page < count or #entries >= count then break end
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
