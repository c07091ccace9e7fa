-- Raise an error if this user may not run the commands of rsmq_add, or if a key has another type. Requires check_writes.
local function check_rsmq_add(zset, hash, channel)
  check_writes(zset, 'zset', 'ZADD', 'ZCARD')
  check_writes(hash, 'hash', 'HSET', 'HINCRBY')
  if channel ~= '' then check_writes(channel, nil, 'PUBLISH') end
end
