-- reschedule: give a delayed job another due time, if it is still delayed.
-- KEYS  1 delayed  2 didx  3 dlid
-- ARGV  1 member ('': the one didx names)  2 run at (ms)  3 life of the markers (s)
-- returns 1 moved, 0 not in the delayed set
local member = ARGV[1]
if member == '' then member = redis.call('GET', KEYS[2]) end
if not member or not redis.call('ZSCORE', KEYS[1], member) then return 0 end
redis.call('ZADD', KEYS[1], 'XX', ARGV[2], member)
redis.call('EXPIRE', KEYS[2], ARGV[3])
redis.call('EXPIRE', KEYS[3], ARGV[3])
return 1
