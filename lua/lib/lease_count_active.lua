-- Return the number of active leases of a shared group, and the number of nacked entries that are not available yet.
local function lease_count_active(stream, group, claim_after)
  local summary = redis.call('XPENDING', stream, group)
  local pending, nacked = summary[1], 0
  if pending == 0 then return 0, 0 end
  local expired = #redis.call('XPENDING', stream, group, 'IDLE', claim_after, '-', '+', pending)
  for _, consumer in ipairs(summary[4]) do
    if consumer[1] == '-nacked' then nacked = tonumber(consumer[2]) end
  end
  if nacked > 0 then
    nacked = nacked - #redis.call('XPENDING', stream, group, 'IDLE', claim_after, '-', '+', nacked, '-nacked')
  end
  return pending - expired - nacked, nacked
end
