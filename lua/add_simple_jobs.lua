-- add_simple_jobs: put jobs on the stream of which nothing is said but payload and name, all of them once.
-- KEYS  1 stream  2 once
-- ARGV  1 life of once (ms)  2.. per run of jobs with one name: n, how many, the d of each
-- returns 1
-- @include add_entry
if redis.call('EXISTS', KEYS[2]) == 1 then return 1 end
local i = 2
while i <= #ARGV do
  local name, last = ARGV[i], i + 1 + tonumber(ARGV[i + 1])
  for j = i + 2, last do push(KEYS[1], ARGV[j], name) end
  i = last + 1
end
redis.call('SET', KEYS[2], '', 'PX', ARGV[1])
return 1
