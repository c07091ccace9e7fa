-- Read the configuration of an RSMQ queue: vt and delay in ms, and maxsize. A field that another client left out has its
-- default. unit_ms is the unit of the stored vt and delay in ms.
-- Returns nil and an error reply if the queue does not exist or a stored value is invalid.
local function rsmq_config(hash, unit_ms)
  local stored = redis.call('HMGET', hash, 'vt', 'delay', 'maxsize')
  if not (stored[1] or stored[2] or stored[3]) then return nil, redis.error_reply('CHASQUIRSMQ queueNotFound') end
  local config = {vt = 30000, delay = 0, maxsize = 65536}
  for i, name in ipairs({'vt', 'delay'}) do
    if stored[i] then
      local ms = (tonumber(stored[i]) or -1) * unit_ms
      if not (ms >= 0 and ms <= 9999999000) then
        return nil, redis.error_reply('CHASQUIRSMQ invalidAttribute ' .. name)
      end
      config[name] = math.floor(ms)
    end
  end
  if stored[3] then
    config.maxsize = tonumber(stored[3])
    if not config.maxsize then return nil, redis.error_reply('CHASQUIRSMQ invalidAttribute maxsize') end
  end
  return config
end
