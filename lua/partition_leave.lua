-- partition_leave: take a consumer out and free its partitions.
-- KEYS  1 members  2 owners
-- ARGV  1 consumer
-- returns how many partitions were freed
redis.call('ZREM', KEYS[1], ARGV[1])
local owners, freed = redis.call('HGETALL', KEYS[2]), 0
for i = 1, #owners, 2 do
  if owners[i + 1] == ARGV[1] then freed = freed + redis.call('HDEL', KEYS[2], owners[i]) end
end
return freed
