-- finalize_batch: write the total of a batch after all its parts were sent. A batch without a total is
-- incomplete.
--
-- KEYS
--   1    batch
-- ARGV
--   1    total
--   2    parts
--   3    created (ms)
--   4    source
--   5    TTL of the batch (ms)
-- RETURNS
--   the total
local stored_total = redis.call('HGET', KEYS[1], 'total')
if stored_total then
  if stored_total ~= ARGV[1] or redis.call('HGET', KEYS[1], 'parts') ~= ARGV[2] then
    return redis.error_reply('CHASQUIFINALIZED ' .. stored_total)
  end
  return tonumber(stored_total)
end
local sent = 0
for part = 0, tonumber(ARGV[2]) - 1 do
  sent = sent + tonumber(redis.call('HGET', KEYS[1], 'sent:' .. part) or '0')
end
if sent ~= tonumber(ARGV[1]) then return redis.error_reply('CHASQUIGAP ' .. sent) end
redis.call('HSET', KEYS[1], 'total', ARGV[1], 'parts', ARGV[2])
redis.call('HSETNX', KEYS[1], 'created', ARGV[3])
redis.call('HSETNX', KEYS[1], 'source', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return sent
