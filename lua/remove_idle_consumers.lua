-- remove_idle_consumers: remove consumers that have no pending entries and have been idle for a long time.
-- Pending entries of idle consumers that were deleted or trimmed are acknowledged, because their jobs are lost.
--
-- KEYS
--   1    stream
-- ARGV
--   1    group
--   2    minimum idle time (ms)
--   3    only this consumer ('': any)
-- RETURNS
--   {consumers removed, deleted entries acknowledged}
-- @include check_writes
check_writes(KEYS[1], nil, 'XACK')
local removed, acked = 0, 0
for _, raw in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local info = {}
  for i = 1, #raw, 2 do info[raw[i]] = raw[i + 1] end
  if (ARGV[3] == '' or ARGV[3] == info['name']) and info['idle'] >= tonumber(ARGV[2]) then
    local pending = info['pending']
    if pending > 0 then
      for _, entry in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1000, info['name'])) do
        if not redis.call('XRANGE', KEYS[1], entry[1], entry[1])[1] then
          redis.call('XACK', KEYS[1], ARGV[1], entry[1])
          pending, acked = pending - 1, acked + 1
        end
      end
    end
    if pending == 0 then
      redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], info['name'])
      removed = removed + 1
    end
  end
end
return {removed, acked}
