-- Return delivered entries that can be leased again, oldest first, as {id, deliveries}, and whether the caller must stop
-- after them. A lease whose deadline is after expired_at has not expired. An ordered queue stops at the first entry that is blocked or waits for its redelivery time. It reads the
-- pending entries in the order of their ids and only as many as it needs; one without state is available.
-- Requires entry_before.
local function lease_candidates(stream, group, deadlines, redeliver_at, blocked, expired_at, now, count, ordered)
  local found = {}
  if not ordered then
    local ids = {}
    for _, range in ipairs({{deadlines, expired_at}, {redeliver_at, now}}) do
      local available = redis.call('ZRANGEBYSCORE', range[1], '-inf', range[2], 'LIMIT', 0, count)
      for _, id in ipairs(available) do ids[#ids + 1] = id end
    end
    table.sort(ids, entry_before)
    for i = 1, math.min(count, #ids) do
      local pending = redis.call('XPENDING', stream, group, ids[i], ids[i], 1)[1]
      found[i] = {ids[i], pending and pending[4] or 0}
    end
    return found, false
  end
  local active, total = redis.call('ZCOUNT', deadlines, '(' .. expired_at, '+inf'), redis.call('XPENDING', stream, group)[1]
  if active == total then return found, false end
  local from, page_size = '-', math.min(100, count)
  while true do
    local page = redis.call('XPENDING', stream, group, from, '+', page_size)
    for _, pending in ipairs(page) do
      local id = pending[1]
      local deadline, available_at = redis.call('ZSCORE', deadlines, id), redis.call('ZSCORE', redeliver_at, id)
      if redis.call('ZSCORE', blocked, id) or (available_at and tonumber(available_at) > tonumber(now)) then
        return found, true
      end
      if not deadline or tonumber(deadline) <= tonumber(expired_at) then found[#found + 1] = {id, pending[4]} end
      if #found >= count then return found, false end
      from = '(' .. id
    end
    if #page < page_size then return found, false end
    page_size = 100
  end
end
