-- Add a message whose id is already known to an RSMQ queue. Publishes the queue length if channel is not empty.
local function rsmq_add(zset, hash, id, body, visible_at, channel)
  redis.call('ZADD', zset, string.format('%.0f', visible_at), id)
  redis.call('HSET', hash, id, body)
  redis.call('HINCRBY', hash, 'totalsent', 1)
  if channel ~= '' then redis.call('PUBLISH', channel, redis.call('ZCARD', zset)) end
end
