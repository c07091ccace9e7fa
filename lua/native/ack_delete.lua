local function ack_delete(stream, group, ids)
  local gone = redis.call('XACKDEL', stream, group, 'IDS', #ids, unpack(ids))
  for i = 1, #ids do gone[i] = gone[i] == 1 end
  return gone
end
