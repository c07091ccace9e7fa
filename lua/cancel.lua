-- cancel: remove a job from the delayed set, or request that workers drop or interrupt it. The markers of the job are
-- deleted, so that its id can be used again. A delayed job of a batch counts as dead.
--
-- KEYS
--   1    idempotency marker
--   2    delayed
--   3    delayed index (didx)
--   4    delayed marker (dlid)
--   5    dedup marker
--   6    stream
--   7    cancel requests
--   8..  batch, done bitmap and dead bitmap, if the job belongs to a batch
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2    delayed member ('': the member that the delayed index names)
--   3    job id
--   4    TTL of a cancel request (ms, 0: write no request)
--   5    position of the batch in KEYS (0: none)
--   6    part with creation time
--   7    index
-- RETURNS
--   1 removed from the delayed set, 2 requested, 0 the job is not in the delayed set and no request was written
-- @include check_writes
-- @include check_batch_bits
-- @include set_batch_bit
-- @include cached_reply
-- @include store_reply
-- @include now_ms
-- @include last_entry_id
local first_reply = cached_reply(KEYS[1])
if first_reply then return first_reply end
check_writes(KEYS[1], nil, 'SET')
for i = 3, 5 do check_writes(KEYS[i], nil, 'DEL') end
check_batch_bits(ARGV[5])
local member = ARGV[2] ~= '' and ARGV[2] or redis.call('GET', KEYS[3])
local is_delayed = member and redis.call('ZSCORE', KEYS[2], member)
if is_delayed then
  redis.call('ZREM', KEYS[2], member)
  redis.call('DEL', KEYS[3], KEYS[4], KEYS[5])
  set_batch_bit(ARGV[5], ARGV[6], ARGV[7], true)
  return store_reply(KEYS[1], ARGV[1], 1)
end
local ttl = tonumber(ARGV[4])
if ttl == 0 then return store_reply(KEYS[1], ARGV[1], 0) end
check_writes(KEYS[7], 'hash', 'HSET', 'HDEL', 'PEXPIREAT', 'PEXPIRETIME')
-- Workers drop the entries up to the last one of the stream, and retries of them, which were created before this time.
local now, earlier = now_ms(), redis.call('HGET', KEYS[7], ARGV[3])
local requested_at = math.max(now, (tonumber(string.match(earlier or '', '^%d+')) or 0) + 1)
local sample = redis.call('HRANDFIELD', KEYS[7], 10, 'WITHVALUES')
local request = string.format('%.0f %s %.0f 0', requested_at, last_entry_id(KEYS[6]), now + ttl)
redis.call('HSET', KEYS[7], ARGV[3], request)
redis.call('PEXPIREAT', KEYS[7], math.max(now + ttl, redis.call('PEXPIRETIME', KEYS[7])))
redis.call('DEL', KEYS[3], KEYS[4], KEYS[5])
-- Forget expired requests. A few per call are enough, because a call adds only one.
for i = 1, #sample, 2 do
  local expires_at = tonumber(string.match(sample[i + 1], '(%d+) [01]$')) or 0
  if expires_at < now and sample[i] ~= ARGV[3] then redis.call('HDEL', KEYS[7], sample[i]) end
end
return store_reply(KEYS[1], ARGV[1], 2)
