-- write_finalize: write the total of a batch that was sent with delivery=dedup or delivery=at_least_once.
--
-- KEYS
--   1    batch
--   2    dedup ids
-- ARGV
--   1    parts
--   2    created (ms)
--   3    source
--   4    TTL (ms)
--   5..  per part that has rows (at_least_once): part, rows
-- RETURNS
--   the total
for i = 5, #ARGV, 2 do redis.call('HSET', KEYS[1], 'sent:' .. ARGV[i], ARGV[i + 1]) end
local sent, batch = 0, redis.call('HGETALL', KEYS[1])
for i = 1, #batch, 2 do
  if string.sub(batch[i], 1, 5) == 'sent:' then sent = sent + tonumber(batch[i + 1]) end
end
redis.call('HSET', KEYS[1], 'total', sent, 'parts', ARGV[1])
redis.call('HSETNX', KEYS[1], 'created', ARGV[2])
redis.call('HSETNX', KEYS[1], 'source', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('UNLINK', KEYS[2])
return sent
