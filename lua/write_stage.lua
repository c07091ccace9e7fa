-- write_stage: stage the first jobs of a task attempt, unless its write is over.
-- KEYS  1 ship  2 batch  3 stages  4 stage
-- ARGV  1 mark of a write that was given up  2 anew (0, 1)  3 life (ms)  4.. items
-- returns how many jobs are staged; -1 the write was given up, or the ship is committed
-- Losing order: Spark has told a task to end, the driver drops what its write has staged, the task comes this far.
if redis.call('SISMEMBER', KEYS[3], ARGV[1]) == 1 then return -1 end
if redis.call('EXISTS', KEYS[1]) == 1 then return -1 end
if ARGV[2] == '0' and redis.call('HEXISTS', KEYS[2], 'total') == 1 then return -1 end
redis.call('SADD', KEYS[3], KEYS[4])
redis.call('PEXPIRE', KEYS[3], ARGV[3])
local staged = 0
for first = 4, #ARGV, 1000 do -- Lua can hand on only so many arguments
  staged = redis.call('RPUSH', KEYS[4], unpack(ARGV, first, math.min(first + 999, #ARGV)))
end
redis.call('PEXPIRE', KEYS[4], ARGV[3])
return staged
