-- cancel_batch: record that a batch is cancelled, unless all its jobs have finished or it belongs to another owner. The
-- field `cancelled` of the batch decides. The set of cancelled batches lets workers notice new ones without reading every
-- batch.
--
-- KEYS
--   1    batch
--   2    cancelled batches
--   3..  the done bitmaps of all parts, then the dead bitmaps of all parts
-- ARGV
--   1    batch id
--   2    compare the owner (0, 1)
--   3    owner
--   4    token of the call
--   5    how long a batch without TTL is listed as cancelled (ms)
-- RETURNS
--   {status, number of parts}: cancelled; already_cancelled; finished; not_owner; missing; other_parts if the bitmaps in
--   KEYS are not those of all parts
-- @include batch_parts
-- @include now_ms
-- @include check_writes
local fields, batch = redis.call('HGETALL', KEYS[1]), {}
if #fields == 0 then return {'missing', 0} end
for i = 1, #fields, 2 do batch[fields[i]] = fields[i + 1] end
local parts = batch_parts(fields)
if ARGV[2] == '1' and (batch.owner or '') ~= ARGV[3] then return {'not_owner', parts} end
if batch.cancelled then
  -- The reply of this call was lost, and the client sent it again.
  return {batch.cancel_token == ARGV[4] and 'cancelled' or 'already_cancelled', parts}
end
if batch.total then
  if #KEYS ~= 2 + 2 * parts then return {'other_parts', parts} end
  local finished = 0
  for i = 3, #KEYS do finished = finished + redis.call('BITCOUNT', KEYS[i]) end
  if finished >= tonumber(batch.total) then return {'finished', parts} end
end
-- Scores increase even if the clock goes back, because workers read only the members after the last one they know.
local last, now = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES'), now_ms()
local score = math.max(now, last[2] and tonumber(last[2]) + 1 or 0)
local ttl = redis.call('PTTL', KEYS[1])
if ttl < 0 then ttl = tonumber(ARGV[5]) end
check_writes(KEYS[1], 'hash', 'HSET')
check_writes(KEYS[2], 'zset', 'ZADD', 'PTTL', 'PEXPIRE', 'ZREM')
local sample = redis.call('ZRANDMEMBER', KEYS[2], 10)
redis.call('HSET', KEYS[1], 'cancelled', string.format('%.0f', now), 'cancel_token', ARGV[4])
redis.call('ZADD', KEYS[2], string.format('%.0f', score), string.format('%.0f', now + ttl) .. ':' .. ARGV[1])
redis.call('PEXPIRE', KEYS[2], math.max(ttl, redis.call('PTTL', KEYS[2])))
-- Forget batches that have expired. A few per call are enough, because a call adds only one.
for _, member in ipairs(sample) do
  if (tonumber(string.match(member, '^%d+')) or 0) < now then redis.call('ZREM', KEYS[2], member) end
end
return {'cancelled', parts}
