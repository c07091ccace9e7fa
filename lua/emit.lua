-- emit: write events, oldest first, and keep the stream short.
-- KEYS  1 events
-- ARGV  1 events kept  2.. per event: number of fields and values, fields and values
-- returns how many were written
local i, written = 2, 0
while i <= #ARGV do
  local last = i + tonumber(ARGV[i])
  redis.call('XADD', KEYS[1], '*', unpack(ARGV, i + 1, last))
  i, written = last + 1, written + 1
end
redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', ARGV[1])
return written
