-- finalize_batch: write the total of a batch after all its parts were sent. A batch without a total is
-- incomplete.
--
-- KEYS
--   1    batch
--   2..  the done bitmaps of all parts, then the dead bitmaps of all parts, then the keys of all parts
-- ARGV
--   1    total
--   2    parts
--   3    created (ms)
--   4    source
--   5    TTL of the batch (ms)
--   6    owner ('': none)
-- RETURNS
--   the total
-- @include check_writes
-- @include check_batch_not_cancelled
local cancelled = check_batch_not_cancelled(KEYS[1])
if cancelled then return cancelled end
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
check_writes(KEYS[1], 'hash', 'HSET', 'HSETNX', 'PEXPIRE')
for i = 2, #KEYS do check_writes(KEYS[i], nil, 'PEXPIRE') end
redis.call('HSET', KEYS[1], 'total', ARGV[1], 'parts', ARGV[2])
redis.call('HSETNX', KEYS[1], 'created', ARGV[3])
redis.call('HSETNX', KEYS[1], 'source', ARGV[4])
if ARGV[6] ~= '' then redis.call('HSETNX', KEYS[1], 'owner', ARGV[6]) end
for i = 1, #KEYS do redis.call('PEXPIRE', KEYS[i], ARGV[5]) end
return sent
