-- partition_leave: remove a consumer from the group and release its partitions.
--
-- KEYS
--   1    idempotency marker
--   2    partitions:members
--   3    partitions:owners
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2    consumer
-- RETURNS
--   the number of partitions released
-- @include check_writes
-- @include cached_reply
-- @include store_reply
local first_reply = cached_reply(KEYS[1])
if first_reply then return first_reply end
check_writes(KEYS[1], nil, 'SET')
check_writes(KEYS[3], 'hash', 'HGETALL', 'HDEL')
redis.call('ZREM', KEYS[2], ARGV[2])
local owners, released = redis.call('HGETALL', KEYS[3]), 0
for i = 1, #owners, 2 do
  if owners[i + 1] == ARGV[2] then released = released + redis.call('HDEL', KEYS[3], owners[i]) end
end
return store_reply(KEYS[1], ARGV[1], released)
