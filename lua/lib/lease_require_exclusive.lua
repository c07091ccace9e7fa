-- Prepare a queue for exclusive mode: no other consumer group may read the stream, and all clients must use the same
-- configuration. Returns an error reply if that is not the case, otherwise nil. Creates the group if it is missing.
-- Requires check_writes.
local function lease_require_exclusive(stream, group, config_key, config)
  local stored = redis.call('GET', config_key)
  if stored and stored ~= config then return redis.error_reply('CHASQUILEASE config_mismatch ' .. stored) end
  if redis.call('EXISTS', stream) == 1 then
    for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
      if info[2] ~= group then return redis.error_reply('CHASQUILEASE foreign_group ' .. info[2]) end
    end
  end
  check_writes(stream, nil, 'XGROUP|CREATE')
  if not stored then redis.call('SET', config_key, config) end
  redis.pcall('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM') -- The error BUSYGROUP means that the group exists.
end
