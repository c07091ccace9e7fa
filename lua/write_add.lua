-- write_add: add jobs to the queue without deduplication (delivery=at_least_once). The first jobs of a part delete the
-- bitmaps of an earlier batch with the same id.
--
-- KEYS
--   1    stream
--   2    delayed
--   3    batch
--   4    done bitmap of the part
--   5    dead bitmap of the part
-- ARGV
--   1    delay (ms)
--   2    each item has its own due time (0, 1)
--   3    TTL of the batch (ms)
--   4    part ('': the items belong to no batch)
--   5    number of jobs of the part, with these
--   6..  items
-- RETURNS
--   the number of jobs added
-- @include check_writes
-- @include add_delayed
-- @include add_entry
-- @include split_delayed_member
-- @include now_ms
-- @include add_staged_item
local now, delay, per_row_run_at = now_ms(), tonumber(ARGV[1]), ARGV[2] == '1'
check_writes(KEYS[1], 'stream', 'XADD')
check_writes(KEYS[2], 'zset', 'ZADD')
if ARGV[4] ~= '' then
  -- Bits are set only for jobs that were sent, and a worker may finish a job before the batch is finalized.
  check_writes(KEYS[3], 'hash', 'HSET', 'PEXPIRE')
  check_writes(KEYS[4], nil, 'UNLINK', 'PEXPIRE')
  check_writes(KEYS[5], nil, 'UNLINK', 'PEXPIRE')
  local field = 'sent:' .. ARGV[4]
  local sent = tonumber(redis.call('HGET', KEYS[3], field) or '0')
  if sent < tonumber(ARGV[5]) then
    redis.call('HSET', KEYS[3], field, ARGV[5])
    if sent == 0 then redis.call('UNLINK', KEYS[4], KEYS[5]) end
    redis.call('PEXPIRE', KEYS[3], ARGV[3])
    redis.call('PEXPIRE', KEYS[4], ARGV[3])
    redis.call('PEXPIRE', KEYS[5], ARGV[3])
  end
end
for i = 6, #ARGV do add_staged_item(KEYS[1], KEYS[2], ARGV[i], per_row_run_at, delay, now) end
return #ARGV - 5
