local function lease_read(stream, group, consumer, idle, count, new_room)
  return lease_two_steps(stream, group, consumer, idle, count, new_room)
end
