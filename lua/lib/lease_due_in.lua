-- Return the ms until the next lease expires or the next nacked entry becomes available; -1 if there is none.
local function lease_due_in(deadlines, redeliver_at, now)
  local due_in = -1
  for _, key in ipairs({deadlines, redeliver_at}) do
    local first = redis.call('ZRANGEBYSCORE', key, string.format('(%.0f', now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if first[2] and (due_in < 0 or tonumber(first[2]) - now < due_in) then due_in = tonumber(first[2]) - now end
  end
  return due_in
end
