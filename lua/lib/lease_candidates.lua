-- Entries that were delivered and are free again, oldest first. In an ordered queue blocked and waiting ones are in
-- the list too, because the line ends at them.
local function lease_candidates(held, later, blocked, now, count, ordered)
  local ids, kind = {}, {}
  local function add(found, what)
    for _, id in ipairs(found) do
      if not kind[id] then ids[#ids + 1] = id end
      kind[id] = what
    end
  end
  if ordered then
    add(redis.call('ZRANGE', later, 0, -1), 'later')
    add(redis.call('ZRANGEBYSCORE', later, '-inf', now), 'free')
    add(redis.call('ZRANGEBYSCORE', held, '-inf', now), 'free')
    add(redis.call('ZRANGE', blocked, 0, -1), 'blocked')
  else
    add(redis.call('ZRANGEBYSCORE', held, '-inf', now, 'LIMIT', 0, count), 'free')
    add(redis.call('ZRANGEBYSCORE', later, '-inf', now, 'LIMIT', 0, count), 'free')
  end
  table.sort(ids, entry_before)
  return ids, kind
end
