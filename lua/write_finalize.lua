-- write_finalize: write the total of a batch that was sent with delivery=dedup or delivery=at_least_once.
--
-- KEYS
--   1    batch
--   2    dedup ids
--   3..  the done bitmap and the dead bitmap of each part
-- ARGV
--   1    parts
--   2    created (ms)
--   3    source
--   4    TTL (ms)
--   5..  per part that has rows (at_least_once): part, rows
-- RETURNS
--   the total
-- @include check_writes
-- @include check_batch_not_cancelled
local cancelled = check_batch_not_cancelled(KEYS[1])
if cancelled then return cancelled end
check_writes(KEYS[1], 'hash', 'HSET', 'HSETNX', 'HDEL', 'PEXPIRE')
check_writes(KEYS[2], nil, 'UNLINK')
for i = 3, #KEYS do check_writes(KEYS[i], nil, 'UNLINK', 'PEXPIRE') end
local sent, batch, sent_parts = 0, redis.call('HGETALL', KEYS[1]), {}
for i = 5, #ARGV, 2 do
  sent_parts['sent:' .. ARGV[i]] = true
  redis.call('HSET', KEYS[1], 'sent:' .. ARGV[i], ARGV[i + 1])
  sent = sent + tonumber(ARGV[i + 1])
end
for i = 1, #batch, 2 do
  if string.sub(batch[i], 1, 5) == 'sent:' and not sent_parts[batch[i]] then
    if #ARGV >= 5 then
      redis.call('HDEL', KEYS[1], batch[i]) -- Only failed attempts of a task have sent this part.
    else
      sent_parts[batch[i]] = true
      sent = sent + tonumber(batch[i + 1])
    end
  end
end
redis.call('HSET', KEYS[1], 'total', sent, 'parts', ARGV[1])
redis.call('HSETNX', KEYS[1], 'created', ARGV[2])
redis.call('HSETNX', KEYS[1], 'source', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('UNLINK', KEYS[2])
for i = 3, #KEYS do
  if sent_parts['sent:' .. math.floor((i - 3) / 2)] then
    redis.call('PEXPIRE', KEYS[i], ARGV[4])
  else
    redis.call('UNLINK', KEYS[i]) -- Bits of failed attempts, or of an earlier batch with the same id.
  end
end
return sent
