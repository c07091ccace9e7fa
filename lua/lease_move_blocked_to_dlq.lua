-- lease_move_blocked_to_dlq: give a blocked entry up (exclusive mode): write its letter and let the line go on.
-- KEYS  1 stream  2 dlq  3 blocked  4 grants  5 dead bits
-- ARGV  1 group  2 entry id  3 bit of the job in its batch (-1: none)  4 life of the dead bits (ms)  5.. fields and values of the letter
-- returns 1 given up, 0 it was not blocked
-- @include ack_delete
redis.call('XLEN', KEYS[2]) -- refuses a key of another type before anything is settled
if redis.call('ZREM', KEYS[3], ARGV[2]) == 0 then return 0 end
redis.call('HDEL', KEYS[4], ARGV[2])
if not ack_delete(KEYS[1], ARGV[1], {ARGV[2]})[1] then return 0 end
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 5))
if ARGV[3] ~= '-1' then
  redis.call('SETBIT', KEYS[5], ARGV[3], 1)
  redis.call('PEXPIRE', KEYS[5], ARGV[4])
end
return 1
