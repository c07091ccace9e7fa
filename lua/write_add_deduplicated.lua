-- write_add_deduplicated: add the jobs of rows that were not sent before, numbered in the order of arrival
-- (delivery=dedup). The first jobs delete the bitmaps of an earlier batch with the same id.
--
-- KEYS
--   1    stream
--   2    delayed
--   3    batch
--   4    dedup ids
--   5    done bitmap of the part
--   6    dead bitmap of the part
-- ARGV
--   1    delay (ms)
--   2    each item has its own due time (0, 1)
--   3    TTL (ms)
--   4    created (ms)
--   5    source
--   6    prefix of the job id before its number ('': rows have their own ids)
--   7..  per row: row id, part of the item before the job id, part of the item after it
-- RETURNS
--   the number of new jobs; -1 if the batch is already complete
-- @include check_writes
-- @include add_delayed
-- @include add_entry
-- @include split_delayed_member
-- @include now_ms
-- @include add_staged_item
-- @include check_batch_not_cancelled
local cancelled = check_batch_not_cancelled(KEYS[3])
if cancelled then return cancelled end
if redis.call('HEXISTS', KEYS[3], 'total') == 1 then return -1 end
check_writes(KEYS[1], 'stream', 'XADD')
check_writes(KEYS[2], 'zset', 'ZADD')
check_writes(KEYS[3], 'hash', 'HSET', 'HSETNX', 'PEXPIRE')
check_writes(KEYS[4], 'set', 'SADD', 'PEXPIRE')
check_writes(KEYS[5], nil, 'UNLINK', 'PEXPIRE')
check_writes(KEYS[6], nil, 'UNLINK', 'PEXPIRE')
-- Encode a string as MessagePack.
local function pack_string(text)
  if #text < 32 then return string.char(160 + #text) .. text end
  if #text < 256 then return string.char(217, #text) .. text end
  return string.char(218, math.floor(#text / 256), #text % 256) .. text
end
local now, delay, per_row_run_at = now_ms(), tonumber(ARGV[1]), ARGV[2] == '1'
local sent = tonumber(redis.call('HGET', KEYS[3], 'sent:0') or '0')
local sent_before = sent
for i = 7, #ARGV, 3 do
  if redis.call('SADD', KEYS[4], ARGV[i]) == 1 then
    local job_id = ARGV[6] == '' and '' or pack_string(ARGV[6] .. sent)
    add_staged_item(KEYS[1], KEYS[2], ARGV[i + 1] .. job_id .. ARGV[i + 2], per_row_run_at, delay, now)
    sent = sent + 1
  end
end
redis.call('HSET', KEYS[3], 'sent:0', sent)
redis.call('HSETNX', KEYS[3], 'created', ARGV[4])
redis.call('HSETNX', KEYS[3], 'source', ARGV[5])
if sent_before == 0 then redis.call('UNLINK', KEYS[5], KEYS[6]) end
redis.call('PEXPIRE', KEYS[3], ARGV[3])
redis.call('PEXPIRE', KEYS[4], ARGV[3])
redis.call('PEXPIRE', KEYS[5], ARGV[3])
redis.call('PEXPIRE', KEYS[6], ARGV[3])
return sent - sent_before
