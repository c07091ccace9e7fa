-- Refuse before the first write, so that a full queue is never half filled.
local function room(stream, max_len, wanted)
  if max_len > 0 and redis.call('XLEN', stream) + wanted > max_len then
    return redis.error_reply('CHASQUIFULL ' .. max_len)
  end
end
