-- write_commit: commit a staged write, unless another writer of the same batch has committed before. The bitmaps of an
-- earlier batch with the same id are deleted.
--
-- KEYS
--   1    staged write
--   2    batch
--   3    staged parts
--   4..  the staged lists of this writer, then the bitmaps of all parts
-- ARGV
--   1    writer id
--   2    overwrite (0, 1)
--   3    number of staged lists
--   4    rows
--   5    number of header fields and values
--   6..  header fields and values, then per staged list: part, rows
-- RETURNS
--   {status, detail}: committed and the writer id; publishing and the id of the writer that committed before;
--   done and the total; staging_lost and the missing list; conflict and ''
-- @include check_writes
-- @include check_batch_not_cancelled
local cancelled = check_batch_not_cancelled(KEYS[2])
if cancelled then return cancelled end
local state = redis.call('HGET', KEYS[1], 'state')
if state then return {'publishing', redis.call('HGET', KEYS[1], 'writer_id')} end
local total = redis.call('HGET', KEYS[2], 'total')
if ARGV[2] == '0' then
  if total then return {'done', total} end
  -- Jobs of this batch were sent by another mechanism. The indexes of both would overlap.
  if redis.call('EXISTS', KEYS[2]) == 1 then return {'conflict', ''} end
end
local list_count, header_size = tonumber(ARGV[3]), tonumber(ARGV[5])
for i = 1, list_count do
  local rows = tonumber(ARGV[4 + header_size + i * 2 + 1])
  if redis.call('LLEN', KEYS[3 + i]) ~= rows then return {'staging_lost', KEYS[3 + i]} end
end
check_writes(KEYS[1], 'hash', 'HSET')
check_writes(KEYS[2], 'hash', 'UNLINK')
check_writes(KEYS[3], 'set', 'PERSIST')
for i = 4, #KEYS do check_writes(KEYS[i], nil, i < 4 + list_count and 'PERSIST' or 'UNLINK') end
-- If the batch is not overwritten, it does not exist.
redis.call('UNLINK', KEYS[2])
for i = 4 + list_count, #KEYS do redis.call('UNLINK', KEYS[i]) end
for i = 1, list_count do
  redis.call('PERSIST', KEYS[3 + i])
  redis.call('HSET', KEYS[1], 'staged:' .. ARGV[4 + header_size + i * 2], KEYS[3 + i])
end
for i = 6, 5 + header_size, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('HSET', KEYS[1], 'state', 'publishing', 'writer_id', ARGV[1], 'rows', ARGV[4])
redis.call('PERSIST', KEYS[3])
return {'committed', ARGV[1]}
