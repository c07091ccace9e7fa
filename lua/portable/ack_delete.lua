-- Acknowledge entries and delete them. Returns a list with true for each entry that this call acknowledged.
local function ack_delete(stream, group, ids)
  local deleted = {}
  for i, id in ipairs(ids) do
    deleted[i] = redis.call('XACK', stream, group, id) == 1
    if deleted[i] then redis.call('XDEL', stream, id) end
  end
  return deleted
end
