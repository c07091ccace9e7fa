-- add_simple_jobs: add jobs that have only a payload and a name to the stream, all of them exactly once.
--
-- KEYS
--   1    stream
--   2    idempotency marker
--   3..  the idempotency marker of the call that must have been executed before, if there is one
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2..  per group of consecutive jobs with the same name: n, number of jobs, the d of each job
-- RETURNS
--   1
-- @include check_writes
-- @include add_entry
if redis.call('GET', KEYS[2]) then return 1 end
for i = 3, #KEYS do
  if not redis.call('GET', KEYS[i]) then return redis.error_reply('CHASQUIORDER') end
end
check_writes(KEYS[2], nil, 'SET')
local i = 2
while i <= #ARGV do
  local name, last = ARGV[i], i + 1 + tonumber(ARGV[i + 1])
  for j = i + 2, last do add_entry(KEYS[1], ARGV[j], name) end
  i = last + 1
end
redis.call('SET', KEYS[2], '', 'PX', ARGV[1])
return 1
