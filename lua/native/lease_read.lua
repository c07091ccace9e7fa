local function lease_read(stream, group, consumer, idle, count, new_room)
  if new_room < count then return lease_claim_then_read(stream, group, consumer, idle, count, new_room) end
  local read = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', count, 'CLAIM', idle, 'STREAMS', stream, '>')
  return read and read[1] and read[1][2] or {}
end
