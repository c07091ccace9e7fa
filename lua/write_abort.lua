-- write_abort: drop what a write has staged, unless that write has won: its jobs are promised.
-- KEYS  1 ship  2 stages  3.. the lists of the write
-- ARGV  1 write  2 mark of a write that was given up ('': it was not, another one has won)  3 life of the mark (ms)
-- returns 1 dropped, 0 the write has won
local won = redis.call('HGET', KEYS[1], 'write')
if won == ARGV[1] then return 0 end
if ARGV[2] ~= '' and not won then
  redis.call('SADD', KEYS[2], ARGV[2])
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
end
for i = 3, #KEYS do
  redis.call('UNLINK', KEYS[i])
  redis.call('SREM', KEYS[2], KEYS[i])
end
return 1
