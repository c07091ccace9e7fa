-- cancel: take a delayed job back, or say that it has already left.
-- KEYS  1 delayed  2 didx  3 dlid  4 unique  5 dead
-- ARGV  1 member ('': the one didx names)  2 bit of the job in its batch (-1: none)  3 life of the dead bits (ms)
-- returns 1 taken back, 0 not in the delayed set
local member = ARGV[1]
if member == '' then member = redis.call('GET', KEYS[2]) end
if not member or redis.call('ZREM', KEYS[1], member) == 0 then return 0 end
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
if ARGV[2] ~= '-1' then
  redis.call('SETBIT', KEYS[5], ARGV[2], 1)
  redis.call('PEXPIRE', KEYS[5], ARGV[3])
end
return 1
