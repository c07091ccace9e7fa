-- How many leases of a shared group stand, and how many entries were handed back and are not due yet.
local function lease_count_active(stream, group, reclaim)
  local summary = redis.call('XPENDING', stream, group)
  local pending, nacked = summary[1], 0
  if pending == 0 then return 0, 0 end
  local idle = #redis.call('XPENDING', stream, group, 'IDLE', reclaim, '-', '+', pending)
  for _, consumer in ipairs(summary[4]) do
    if consumer[1] == '-nacked' then nacked = tonumber(consumer[2]) end
  end
  if nacked > 0 then
    nacked = nacked - #redis.call('XPENDING', stream, group, 'IDLE', reclaim, '-', '+', nacked, '-nacked')
  end
  return pending - idle - nacked, nacked
end
