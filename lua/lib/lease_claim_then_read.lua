-- Idle entries first, then new ones, in the shape of XREADGROUP ... CLAIM: {id, fields, idle, deliveries before}.
local function lease_claim_then_read(stream, group, consumer, idle, count, new_room)
  local taken = {}
  for _, entry in ipairs(redis.call('XPENDING', stream, group, 'IDLE', idle, '-', '+', count)) do
    local got = redis.call('XCLAIM', stream, group, consumer, idle, entry[1])[1]
    if got and got[2] then
      taken[#taken + 1] = {got[1], got[2], entry[3], entry[4]}
    else
      redis.call('XACK', stream, group, entry[1]) -- deleted while pending: nothing is left to deliver
    end
  end
  local new = math.min(count - #taken, new_room)
  if new > 0 then
    local read = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', new, 'STREAMS', stream, '>')
    for _, entry in ipairs(read and read[1] and read[1][2] or {}) do
      taken[#taken + 1] = {entry[1], entry[2], 0, 0}
    end
  end
  return taken
end
