-- write_stage: stage the first jobs of a task attempt, unless its writer was aborted or the write is committed.
--
-- KEYS
--   1    staged write
--   2    batch
--   3    staged parts
--   4    staged list
-- ARGV
--   1    abort marker of the writer
--   2    overwrite (0, 1)
--   3    TTL (ms)
--   4..  items
-- RETURNS
--   the number of staged jobs; -1 if the writer was aborted or the write is committed
-- @include check_writes
-- @include check_batch_not_cancelled
-- A task can call this late: Spark has asked it to stop and the driver has already deleted the staged jobs of its writer.
-- The abort marker refuses such a call, so that no staged list is left over.
local cancelled = check_batch_not_cancelled(KEYS[2])
if cancelled then return cancelled end
if redis.call('SISMEMBER', KEYS[3], ARGV[1]) == 1 then return -1 end
if redis.call('EXISTS', KEYS[1]) == 1 then return -1 end
if ARGV[2] == '0' and redis.call('HEXISTS', KEYS[2], 'total') == 1 then return -1 end
check_writes(KEYS[3], 'set', 'SADD', 'PEXPIRE')
check_writes(KEYS[4], 'list', 'RPUSH', 'PEXPIRE')
redis.call('SADD', KEYS[3], KEYS[4])
redis.call('PEXPIRE', KEYS[3], ARGV[3])
local staged = 0
for first = 4, #ARGV, 1000 do -- In chunks, because unpack() is limited by the Lua stack.
  staged = redis.call('RPUSH', KEYS[4], unpack(ARGV, first, math.min(first + 999, #ARGV)))
end
redis.call('PEXPIRE', KEYS[4], ARGV[3])
return staged
