-- lease_stage_restore: write a part of a snapshot to a staging key, which expires if the restore does not finish.
--
-- KEYS
--   1    idempotency marker
--   2    staging key
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2    TTL of the staging key (ms)
--   3    type of the key (stream, zset, hash, string)
--   4..  the content. stream: per entry its id, the number of fields and values, fields and values;
--        zset: scores and members; hash: fields and values; string: the value
-- RETURNS
--   1
-- @include check_writes
-- @include cached_reply
-- @include store_reply
local first_reply = cached_reply(KEYS[1])
if first_reply then return first_reply end
local kind, i = ARGV[3], 4
check_writes(KEYS[1], nil, 'SET')
check_writes(KEYS[2], kind, 'PEXPIRE')
if kind == 'string' then redis.call('SET', KEYS[2], ARGV[4]) end
while i <= #ARGV and kind ~= 'string' do
  local last = kind == 'stream' and i + 1 + tonumber(ARGV[i + 1]) or i + 1
  if kind == 'stream' then
    redis.call('XADD', KEYS[2], ARGV[i], unpack(ARGV, i + 2, last))
  else
    redis.call(kind == 'zset' and 'ZADD' or 'HSET', KEYS[2], ARGV[i], ARGV[i + 1])
  end
  i = last + 1
end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return store_reply(KEYS[1], ARGV[1], 1)
