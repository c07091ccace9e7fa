-- Return the entries of an acquire call whose reply was lost, without those that the consumer does not hold any more.
-- granted is a flat list of entry ids and previous deliveries. Requires lease_is_held.
local function lease_recall(stream, group, owners, consumer, fencing_token, granted)
  local entries = {}
  for i = 1, #granted, 2 do
    local id, previous = granted[i], granted[i + 1]
    local held = lease_is_held(stream, group, owners, id, consumer, previous + 1, string.format('%.0f', fencing_token))
    local entry = held and redis.call('XRANGE', stream, id, id)[1]
    if entry then entries[#entries + 1] = {id, entry[2], 0, previous} end
  end
  return entries
end
