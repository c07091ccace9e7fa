-- add_simple_jobs: add jobs that have only a payload and a name to the stream, all of them exactly once.
--
-- KEYS
--   1    stream
--   2    idempotency marker
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2..  per group of consecutive jobs with the same name: n, number of jobs, the d of each job
-- RETURNS
--   1
-- @include add_entry
if redis.call('EXISTS', KEYS[2]) == 1 then return 1 end
local i = 2
while i <= #ARGV do
  local name, last = ARGV[i], i + 1 + tonumber(ARGV[i + 1])
  for j = i + 2, last do add_entry(KEYS[1], ARGV[j], name) end
  i = last + 1
end
redis.call('SET', KEYS[2], '', 'PX', ARGV[1])
return 1
