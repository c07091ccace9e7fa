-- Delete the state of one exclusive lease.
local function lease_clear(deadlines, owners, max_deliveries, id)
  redis.call('ZREM', deadlines, id)
  redis.call('HDEL', owners, id)
  redis.call('HDEL', max_deliveries, id)
end
