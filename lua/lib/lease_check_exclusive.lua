-- Raise an error if this user may not run the commands of lease_acquire_exclusive, or if a key has another type. Call it
-- before the first write. Requires check_writes and lease_check_acquire.
local function lease_check_exclusive(keys)
  lease_check_acquire(keys[1], keys[2], keys[3])
  check_writes(keys[2], nil, 'XACK')
  check_writes(keys[4], 'stream', 'XADD')
  check_writes(keys[5], 'zset', 'ZREVRANGE', 'ZRANGEBYSCORE', 'ZCOUNT', 'ZSCORE', 'ZADD', 'ZREM', 'UNLINK')
  check_writes(keys[6], 'zset', 'ZRANGEBYSCORE', 'ZSCORE', 'ZREM')
  check_writes(keys[7], 'hash', 'HGET', 'HSET', 'HDEL', 'UNLINK')
  check_writes(keys[8], 'zset', 'ZSCORE', 'ZADD')
  check_writes(keys[9], 'hash', 'HGET')
  check_writes(keys[10], 'string', 'INCR')
end
