-- ship_abort: drop what a write has staged, unless that write has won: its jobs are promised.
-- KEYS  1 ship  2 stages  3.. the lists of the write
-- ARGV  1 write
-- returns 1 dropped, 0 the write has won
if redis.call('HGET', KEYS[1], 'write') == ARGV[1] then return 0 end
for i = 3, #KEYS do
  redis.call('UNLINK', KEYS[i])
  redis.call('SREM', KEYS[2], KEYS[i])
end
return 1
