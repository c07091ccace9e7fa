-- write_publish: move the next staged jobs of one part to the queue, each exactly once even if several
-- processes publish.
--
-- KEYS
--   1    stream
--   2    delayed
--   3    staged write
--   4    batch
--   5    staged list
--   6    done bitmap of the part
--   7    dead bitmap of the part
-- ARGV
--   1    writer id
--   2    part
--   3    maximum number of jobs
-- RETURNS
--   the number of jobs moved; 0 if the batch is cancelled
-- @include check_writes
-- @include add_delayed
-- @include add_entry
-- @include split_delayed_member
-- @include now_ms
-- @include add_staged_item
local header = redis.call('HMGET', KEYS[3], 'writer_id', 'delay_ms', 'per_row_run_at', 'ttl_ms', 'created', 'source')
if header[1] ~= ARGV[1] or redis.call('HEXISTS', KEYS[4], 'cancelled') == 1 then return 0 end
check_writes(KEYS[1], 'stream', 'XADD')
check_writes(KEYS[2], 'zset', 'ZADD')
check_writes(KEYS[4], 'hash', 'HINCRBY', 'HSETNX', 'PEXPIRE')
check_writes(KEYS[6], nil, 'PEXPIRE')
check_writes(KEYS[7], nil, 'PEXPIRE')
local now, delay, per_row_run_at = now_ms(), tonumber(header[2]), header[3] == '1'
local items = redis.call('LPOP', KEYS[5], ARGV[3])
if not items then return 0 end
for i = 1, #items do add_staged_item(KEYS[1], KEYS[2], items[i], per_row_run_at, delay, now) end
redis.call('HINCRBY', KEYS[4], 'sent:' .. ARGV[2], #items)
redis.call('HSETNX', KEYS[4], 'created', header[5])
redis.call('HSETNX', KEYS[4], 'source', header[6])
redis.call('PEXPIRE', KEYS[4], header[4])
redis.call('PEXPIRE', KEYS[6], header[4])
redis.call('PEXPIRE', KEYS[7], header[4])
return #items
