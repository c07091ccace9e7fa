-- emit: write events, oldest first, and keep the stream short.
-- KEYS  1 events
-- ARGV  1 events kept  2.. per event: number of fields and values, fields and values; or, for both events of a run that ended well: 0, job id, name, attempt, began (ms), ended (ms), duration (us)
-- returns how many were written
local events, i, written = KEYS[1], 2, 0
while i <= #ARGV do
  if ARGV[i] == '0' then
    local id, name, attempt, began, ended, duration = unpack(ARGV, i + 1, i + 6)
    if name == '' then
      redis.call('XADD', events, '*', 'e', 'active', 'id', id, 'ts', began, 'attempt', attempt)
      redis.call('XADD', events, '*', 'e', 'completed', 'id', id, 'ts', ended, 'attempt', attempt,
        'duration_us', duration)
    else
      redis.call('XADD', events, '*', 'e', 'active', 'id', id, 'ts', began, 'n', name, 'attempt', attempt)
      redis.call('XADD', events, '*', 'e', 'completed', 'id', id, 'ts', ended, 'n', name, 'attempt', attempt,
        'duration_us', duration)
    end
    i, written = i + 7, written + 2
  else
    local last = i + tonumber(ARGV[i])
    redis.call('XADD', events, '*', unpack(ARGV, i + 1, last))
    i, written = last + 1, written + 1
  end
end
redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', ARGV[1])
return written
