-- lease_restore_set_aside: put an entry that was set aside back on the stream, or among the letters (shared mode).
-- KEYS  1 aside  2 stream  3 dlq  4 dead bits
-- ARGV  1 id in aside  2 to the letters (1, 0)  3 bit of the job in its batch (-1: none)  4 life of the dead bits (ms)  5 d  6 n  7.. fields and values of the letter
-- returns 1 put back, 0 it is not there
-- @include add_entry
redis.call('XLEN', KEYS[3]) -- refuses a key of another type before anything is taken
if redis.call('XDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
if ARGV[2] == '0' then
  push(KEYS[2], ARGV[5], ARGV[6])
  return 1
end
redis.call('XADD', KEYS[3], '*', unpack(ARGV, 7))
if ARGV[3] ~= '-1' then
  redis.call('SETBIT', KEYS[4], ARGV[3], 1)
  redis.call('PEXPIRE', KEYS[4], ARGV[4])
end
return 1
