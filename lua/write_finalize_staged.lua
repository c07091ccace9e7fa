-- write_finalize_staged: finalize the batch of a staged write after all its jobs were published, and delete the
-- staged data.
--
-- KEYS
--   1    staged write
--   2    batch
--   3    staged parts
--   4..  staged lists
-- ARGV
--   1    writer id
-- RETURNS
--   the total; -1 if jobs are still staged; -2 if neither such a write nor a finalized batch exists
local total = redis.call('HGET', KEYS[2], 'total')
local header = redis.call('HMGET', KEYS[1], 'writer_id', 'rows', 'parts', 'ttl_ms', 'created', 'source')
if header[1] ~= ARGV[1] then return total and tonumber(total) or -2 end
local sent, batch = 0, redis.call('HGETALL', KEYS[2])
for i = 1, #batch, 2 do
  if string.sub(batch[i], 1, 5) == 'sent:' then sent = sent + tonumber(batch[i + 1]) end
end
if sent ~= tonumber(header[2]) then return -1 end
redis.call('HSET', KEYS[2], 'total', header[2], 'parts', header[3])
redis.call('HSETNX', KEYS[2], 'created', header[5])
redis.call('HSETNX', KEYS[2], 'source', header[6])
redis.call('PEXPIRE', KEYS[2], header[4])
for i = 3, #KEYS do redis.call('UNLINK', KEYS[i]) end
redis.call('UNLINK', KEYS[1])
return sent
