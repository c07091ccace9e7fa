-- release_leader_lock: give up the lead, if it is still ours.
-- KEYS  1 lock
-- ARGV  1 holder
-- returns 1 given up, 0 it was not ours
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
