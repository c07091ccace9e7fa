-- Whether a lease still stands: in exclusive mode its fence tells, else owner and delivery count in the group.
local function lease_is_held(stream, group, owners, id, consumer, count, fence)
  if fence ~= '0' then return redis.call('HGET', owners, id) == fence .. ':' .. consumer end
  local entry = redis.call('XPENDING', stream, group, id, id, 1)[1]
  return entry ~= nil and entry[2] == consumer and entry[4] == tonumber(count)
end
