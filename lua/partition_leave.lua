-- partition_leave: remove a consumer from the group and release its partitions.
--
-- KEYS
--   1    partitions:members
--   2    partitions:owners
-- ARGV
--   1    consumer
-- RETURNS
--   the number of partitions released
redis.call('ZREM', KEYS[1], ARGV[1])
local owners, released = redis.call('HGETALL', KEYS[2]), 0
for i = 1, #owners, 2 do
  if owners[i + 1] == ARGV[1] then released = released + redis.call('HDEL', KEYS[2], owners[i]) end
end
return released
