-- acquire_leader_lock: take the lead if nobody has it, or keep it if it is ours.
-- KEYS  1 lock
-- ARGV  1 holder  2 life (s)
-- returns 1 leading, 0 someone else leads
local holder = redis.call('GET', KEYS[1])
if not holder then
  redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
  return 1
end
if holder == ARGV[1] then
  redis.call('EXPIRE', KEYS[1], ARGV[2])
  return 1
end
redis.call('EXPIRE', KEYS[1], ARGV[2], 'NX') -- a lock without an end, left by whomever, would keep all out for ever
return 0
