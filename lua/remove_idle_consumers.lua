-- remove_idle_consumers: remove consumers that have no pending entries and have been idle for a long time.
--
-- KEYS
--   1    stream
-- ARGV
--   1    group
--   2    minimum idle time (ms)
--   3    only this consumer ('': any)
-- RETURNS
--   the number of consumers removed
local removed = 0
for _, raw in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local info = {}
  for i = 1, #raw, 2 do info[raw[i]] = raw[i + 1] end
  local matches = ARGV[3] == '' or ARGV[3] == info['name']
  if matches and info['pending'] == 0 and info['idle'] >= tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], info['name'])
    removed = removed + 1
  end
end
return removed
