-- Exclusive mode wants the stream for itself and one configuration for all; returns an error where that is not so.
local function lease_require_exclusive(stream, group, config_key, config)
  local stored = redis.call('GET', config_key)
  if stored and stored ~= config then return redis.error_reply('CHASQUILEASE exists ' .. stored) end
  if redis.call('EXISTS', stream) == 1 then
    for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
      if info[2] ~= group then return redis.error_reply('CHASQUILEASE stock ' .. info[2]) end
    end
  end
  if not stored then redis.call('SET', config_key, config) end
  redis.pcall('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM') -- BUSYGROUP: it is there
end
