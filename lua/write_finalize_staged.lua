-- write_finalize_staged: finalize the batch of a staged write after all its jobs were published, and delete the
-- staged data.
--
-- KEYS
--   1    staged write
--   2    batch
--   3    staged parts
--   4..  staged lists, then the bitmaps of all parts
-- ARGV
--   1    writer id
--   2    number of staged lists
-- RETURNS
--   the total; -1 if jobs are still staged; -2 if neither such a write nor a finalized batch exists; -3 if the batch is
--   cancelled: the jobs that are still staged are deleted
-- @include check_writes
local total = redis.call('HGET', KEYS[2], 'total')
local header = redis.call('HMGET', KEYS[1], 'writer_id', 'rows', 'parts', 'ttl_ms', 'created', 'source')
if header[1] ~= ARGV[1] then return total and tonumber(total) or -2 end
local last_list = 3 + tonumber(ARGV[2])
for i = 1, last_list do check_writes(KEYS[i], nil, 'UNLINK') end
for i = last_list + 1, #KEYS do check_writes(KEYS[i], nil, 'PEXPIRE') end
check_writes(KEYS[2], 'hash', 'HSET', 'HSETNX', 'PEXPIRE')
local function delete_staged()
  for i = 4, last_list do redis.call('UNLINK', KEYS[i]) end
  redis.call('UNLINK', KEYS[1], KEYS[3])
end
if redis.call('HEXISTS', KEYS[2], 'cancelled') == 1 then
  delete_staged()
  return -3
end
local sent, batch = 0, redis.call('HGETALL', KEYS[2])
for i = 1, #batch, 2 do
  if string.sub(batch[i], 1, 5) == 'sent:' then sent = sent + tonumber(batch[i + 1]) end
end
if sent ~= tonumber(header[2]) then return -1 end
redis.call('HSET', KEYS[2], 'total', header[2], 'parts', header[3])
redis.call('HSETNX', KEYS[2], 'created', header[5])
redis.call('HSETNX', KEYS[2], 'source', header[6])
redis.call('PEXPIRE', KEYS[2], header[4])
for i = last_list + 1, #KEYS do redis.call('PEXPIRE', KEYS[i], header[4]) end
delete_staged()
return sent
