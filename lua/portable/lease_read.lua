local function lease_read(stream, group, consumer, idle, count, new_room)
  return lease_claim_then_read(stream, group, consumer, idle, count, new_room)
end
