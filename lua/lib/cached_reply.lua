-- Return the reply of the first execution of this call, or nil. A call whose reply was lost is sent again with the same
-- marker and must have no second effect.
local function cached_reply(marker)
  local stored = redis.call('GET', marker)
  return stored and cmsgpack.unpack(stored) or nil
end
