-- The config of an RSMQ queue: vt and delay in ms, and maxsize; a field that another client left out has its default.
-- `unit` is how many ms one stored vt or delay is. Returns nil and an error where the queue is not there or not readable.
local function rsmq_config(hash, unit)
  local raw = redis.call('HMGET', hash, 'vt', 'delay', 'maxsize')
  if not (raw[1] or raw[2] or raw[3]) then return nil, redis.error_reply('CHASQUIRSMQ queueNotFound') end
  local config = {vt = 30000, delay = 0, maxsize = 65536}
  for i, name in ipairs({'vt', 'delay'}) do
    if raw[i] then
      local ms = (tonumber(raw[i]) or -1) * unit
      if not (ms >= 0 and ms <= 9999999000) then return nil, redis.error_reply('CHASQUIRSMQ stored ' .. name) end
      config[name] = math.floor(ms)
    end
  end
  if raw[3] then
    config.maxsize = tonumber(raw[3])
    if not config.maxsize then return nil, redis.error_reply('CHASQUIRSMQ stored maxsize') end
  end
  return config
end
