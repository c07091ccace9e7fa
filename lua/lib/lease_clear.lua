local function lease_clear(held, owners, grants, id)
  redis.call('ZREM', held, id)
  redis.call('HDEL', owners, id)
  redis.call('HDEL', grants, id)
end
