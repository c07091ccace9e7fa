-- cancel: remove a job from the delayed set, with its markers.
--
-- KEYS
--   1    delayed
--   2    delayed index (didx)
--   3    delayed marker (dlid)
--   4    dedup marker
--   5    dead bitmap
-- ARGV
--   1    delayed member ('': the member that the delayed index names)
--   2    bit of the job in its batch (-1: none)
--   3    TTL of the dead bitmap (ms)
-- RETURNS
--   1 cancelled, 0 the job is not in the delayed set
local member = ARGV[1]
if member == '' then member = redis.call('GET', KEYS[2]) end
if not member or redis.call('ZREM', KEYS[1], member) == 0 then return 0 end
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
if ARGV[2] ~= '-1' then
  redis.call('SETBIT', KEYS[5], ARGV[2], 1)
  redis.call('PEXPIRE', KEYS[5], ARGV[3])
end
return 1
