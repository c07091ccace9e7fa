local function ack_delete(stream, group, ids)
  local gone, acked = {}, {}
  for i, id in ipairs(ids) do
    gone[i] = redis.call('XACK', stream, group, id) == 1
    if gone[i] then acked[#acked + 1] = id end
  end
  if #acked > 0 then redis.call('XDEL', stream, unpack(acked)) end
  return gone
end
