-- partition_heartbeat: say that a consumer is alive, free what the dead had, and answer which partitions are its own.
-- KEYS  1 members  2 owners  3 count
-- ARGV  1 consumer  2 alive for (ms)  3 partitions  4.. partitions it has drained and gives up
-- returns {partitions to work on, partitions to drain and give up, members}
-- @include clock
local consumer, total = ARGV[1], tonumber(ARGV[3])
local agreed = redis.call('GET', KEYS[3])
if agreed and agreed ~= ARGV[3] then return redis.error_reply('CHASQUILEASE partitions ' .. agreed) end
if not agreed then redis.call('SET', KEYS[3], ARGV[3]) end
local now = now_ms()
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[2])), consumer)
for i = 4, #ARGV do
  if redis.call('HGET', KEYS[2], ARGV[i]) == consumer then redis.call('HDEL', KEYS[2], ARGV[i]) end
end
local members = redis.call('ZRANGE', KEYS[1], 0, -1)
table.sort(members)
local alive, mine = {}, 0
for i, member in ipairs(members) do
  alive[member] = true
  if member == consumer then mine = i end
end
-- Ranges of neighbours, as even as can be; who is where follows from the names alone.
local low, high = math.floor((mine - 1) * total / #members), math.floor(mine * total / #members)
local work, drain = {}, {}
for partition = 0, total - 1 do
  local wanted = partition >= low and partition < high
  local owner = redis.call('HGET', KEYS[2], partition)
  if wanted and not (owner and alive[owner]) then
    redis.call('HSET', KEYS[2], partition, consumer)
    owner = consumer
  end
  if owner == consumer then
    local list = wanted and work or drain
    list[#list + 1] = partition
  end
end
return {work, drain, members}
