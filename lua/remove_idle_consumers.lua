-- remove_idle_consumers: remove consumers that hold nothing and have long been silent.
-- KEYS  1 stream
-- ARGV  1 group  2 silent for at least (ms)  3 only this consumer ('': any)
-- returns how many were removed
local swept = 0
for _, raw in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local info = {}
  for i = 1, #raw, 2 do info[raw[i]] = raw[i + 1] end
  local meant = ARGV[3] == '' or ARGV[3] == info['name']
  if meant and info['pending'] == 0 and info['idle'] >= tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], info['name'])
    swept = swept + 1
  end
end
return swept
