-- clear_cancel_requests: delete the cancel requests of dropped jobs. A request stays as long as the stream has an entry
-- from before it, which may be another job with the same id, and if a job with the id was cancelled again meanwhile.
--
-- KEYS
--   1    cancel requests
--   2    stream
-- ARGV
--   1..  per job: job id, time of the request (ms)
-- RETURNS
--   the number of deleted requests
local deleted = 0
for i = 1, #ARGV, 2 do
  local request = redis.call('HGET', KEYS[1], ARGV[i])
  local requested_at, last_entry_id = string.match(request or '', '^(%d+) (%d+%-%d+)')
  if requested_at == ARGV[i + 1] and #redis.call('XRANGE', KEYS[2], '-', last_entry_id, 'COUNT', 1) == 0 then
    deleted = deleted + redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return deleted
