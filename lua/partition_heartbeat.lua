-- partition_heartbeat: renew the membership of a consumer, expire other members, and return the partitions of
-- the consumer.
--
-- KEYS
--   1    partitions:members
--   2    partitions:owners
--   3    partitions:count
-- ARGV
--   1    consumer
--   2    session timeout (ms)
--   3    number of partitions
--   4..  partitions that the consumer has drained and releases
-- RETURNS
--   {partitions to consume, partitions to drain and release, members}
-- @include now_ms
local consumer, total = ARGV[1], tonumber(ARGV[3])
local stored_count = redis.call('GET', KEYS[3])
if stored_count and stored_count ~= ARGV[3] then
  return redis.error_reply('CHASQUILEASE partition_count_mismatch ' .. stored_count)
end
if not stored_count then redis.call('SET', KEYS[3], ARGV[3]) end
local now = now_ms()
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[2])), consumer)
for i = 4, #ARGV do
  if redis.call('HGET', KEYS[2], ARGV[i]) == consumer then redis.call('HDEL', KEYS[2], ARGV[i]) end
end
local members = redis.call('ZRANGE', KEYS[1], 0, -1)
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
  local owner = redis.call('HGET', KEYS[2], partition)
  if assigned and not (owner and alive[owner]) then
    redis.call('HSET', KEYS[2], partition, consumer)
    owner = consumer
  end
  if owner == consumer then
    local list = assigned and active or draining
    list[#list + 1] = partition
  end
end
return {active, draining, members}
