-- Return the ids of delivered entries that can be leased again, oldest first, and a table with the state of each id:
-- 'available', 'waiting' or 'blocked'. An ordered queue must stop at the first entry that is waiting for its redelivery
-- time or blocked, so for an ordered queue the list includes those. Requires entry_before.
local function lease_candidates(deadlines, redeliver_at, blocked, now, count, ordered)
  local ids, states = {}, {}
  local function add(members, state)
    for _, id in ipairs(members) do
      if not states[id] then ids[#ids + 1] = id end
      states[id] = state
    end
  end
  if ordered then
    add(redis.call('ZRANGE', redeliver_at, 0, -1), 'waiting')
    add(redis.call('ZRANGEBYSCORE', redeliver_at, '-inf', now), 'available')
    add(redis.call('ZRANGEBYSCORE', deadlines, '-inf', now), 'available')
    add(redis.call('ZRANGE', blocked, 0, -1), 'blocked')
  else
    add(redis.call('ZRANGEBYSCORE', deadlines, '-inf', now, 'LIMIT', 0, count), 'available')
    add(redis.call('ZRANGEBYSCORE', redeliver_at, '-inf', now, 'LIMIT', 0, count), 'available')
  end
  table.sort(ids, entry_before)
  return ids, states
end
