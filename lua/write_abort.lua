-- write_abort: delete the staged jobs of a writer, unless this writer has committed and its jobs must be
-- published.
--
-- KEYS
--   1    staged write
--   2    staged parts
--   3..  the staged lists of the writer
-- ARGV
--   1    writer id
--   2    abort marker ('': do not mark the writer as aborted, because another writer has committed)
--   3    TTL of the abort marker (ms)
-- RETURNS
--   1 deleted, 0 this writer has committed
-- @include check_writes
local committed_writer = redis.call('HGET', KEYS[1], 'writer_id')
if committed_writer == ARGV[1] then return 0 end
check_writes(KEYS[2], 'set', 'SADD', 'SREM', 'PEXPIRE')
for i = 3, #KEYS do check_writes(KEYS[i], nil, 'UNLINK') end
if ARGV[2] ~= '' and not committed_writer then
  redis.call('SADD', KEYS[2], ARGV[2])
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
end
for i = 3, #KEYS do
  redis.call('UNLINK', KEYS[i])
  redis.call('SREM', KEYS[2], KEYS[i])
end
return 1
