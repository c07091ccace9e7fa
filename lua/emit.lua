-- emit: append events, oldest first, and trim the events stream.
--
-- KEYS
--   1    events
-- ARGV
--   1    approximate maximum length of the events stream
--   2..  per event: number of fields and values, fields and values;
--        or, for the two events of one successful run: 0, job id, name, attempt, started (ms), finished (ms), duration (us)
-- RETURNS
--   the number of events written
-- @include check_writes
check_writes(KEYS[1], nil, 'XTRIM')
local events, i, written = KEYS[1], 2, 0
while i <= #ARGV do
  if ARGV[i] == '0' then
    local id, name, attempt, started, finished, duration = unpack(ARGV, i + 1, i + 6)
    if name == '' then
      redis.call('XADD', events, '*', 'e', 'active', 'id', id, 'ts', started, 'attempt', attempt)
      redis.call('XADD', events, '*', 'e', 'completed', 'id', id, 'ts', finished, 'attempt', attempt,
        'duration_us', duration)
    else
      redis.call('XADD', events, '*', 'e', 'active', 'id', id, 'ts', started, 'n', name, 'attempt', attempt)
      redis.call('XADD', events, '*', 'e', 'completed', 'id', id, 'ts', finished, 'n', name, 'attempt', attempt,
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
