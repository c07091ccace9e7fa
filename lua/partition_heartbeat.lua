-- partition_heartbeat: renew the membership of a consumer, expire other members, and return the partitions of
-- the consumer.
--
-- KEYS
--   1    idempotency marker
--   2    partitions:members
--   3    partitions:owners
--   4    partitions:count
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2    consumer
--   3    session timeout (ms)
--   4    number of partitions
--   5..  partitions that the consumer has drained and releases
-- RETURNS
--   {partitions to consume, partitions to drain and release, members}
-- @include check_writes
-- @include cached_reply
-- @include store_reply
-- @include now_ms
local first_reply = cached_reply(KEYS[1])
if first_reply then return first_reply end
local consumer, total = ARGV[2], tonumber(ARGV[4])
local stored_count = redis.call('GET', KEYS[4])
if stored_count and stored_count ~= ARGV[4] then
  return redis.error_reply('CHASQUILEASE partition_count_mismatch ' .. stored_count)
end
local now = now_ms()
check_writes(KEYS[1], nil, 'SET')
check_writes(KEYS[2], 'zset', 'ZREMRANGEBYSCORE', 'ZADD', 'ZRANGE')
check_writes(KEYS[3], 'hash', 'HGET', 'HSET', 'HDEL')
if not stored_count then redis.call('SET', KEYS[4], ARGV[4]) end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now))
redis.call('ZADD', KEYS[2], string.format('%.0f', now + tonumber(ARGV[3])), consumer)
for i = 5, #ARGV do
  if redis.call('HGET', KEYS[3], ARGV[i]) == consumer then redis.call('HDEL', KEYS[3], ARGV[i]) end
end
local members = redis.call('ZRANGE', KEYS[2], 0, -1)
table.sort(members)
local alive, rank = {}, 0
for i, member in ipairs(members) do
  alive[member] = true
  if member == consumer then rank = i end
end
-- Each member gets a range of consecutive partitions, as even as possible. The ranges depend only on the sorted names.
local low, high = math.floor((rank - 1) * total / #members), math.floor(rank * total / #members)
local active, draining = {}, {}
for partition = 0, total - 1 do
  local assigned = partition >= low and partition < high
  local owner = redis.call('HGET', KEYS[3], partition)
  if assigned and not (owner and alive[owner]) then
    redis.call('HSET', KEYS[3], partition, consumer)
    owner = consumer
  end
  if owner == consumer then
    local list = assigned and active or draining
    list[#list + 1] = partition
  end
end
return store_reply(KEYS[1], ARGV[1], {active, draining, members})
