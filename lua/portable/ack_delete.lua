local function ack_delete(stream, group, ids)
  local gone = {}
  for i, id in ipairs(ids) do
    gone[i] = redis.call('XACK', stream, group, id) == 1
    if gone[i] then redis.call('XDEL', stream, id) end
  end
  return gone
end
