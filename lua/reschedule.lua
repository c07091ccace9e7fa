-- reschedule: change the due time of a delayed job, if it is still delayed.
--
-- KEYS
--   1    delayed
--   2    delayed index (didx)
--   3    delayed marker (dlid)
-- ARGV
--   1    delayed member ('': the member that the delayed index names)
--   2    run at (ms)
--   3    TTL of the index and the marker (s)
-- RETURNS
--   1 rescheduled, 0 the job is not in the delayed set
-- @include check_writes
check_writes(KEYS[2], nil, 'EXPIRE')
check_writes(KEYS[3], nil, 'EXPIRE')
local member = ARGV[1]
if member == '' then member = redis.call('GET', KEYS[2]) end
if not member or not redis.call('ZSCORE', KEYS[1], member) then return 0 end
redis.call('ZADD', KEYS[1], 'XX', ARGV[2], member)
redis.call('EXPIRE', KEYS[2], ARGV[3])
redis.call('EXPIRE', KEYS[3], ARGV[3])
return 1
