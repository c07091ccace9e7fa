-- Add a message whose id is already known to an RSMQ queue. Publishes the queue length if channel is not empty.
-- The counter is only statistics: if another program has written text into it, the message is still added.
local function rsmq_add(zset, hash, id, body, visible_at, channel)
  redis.call('ZADD', zset, string.format('%.0f', visible_at), id)
  redis.call('HSET', hash, id, body)
  redis.pcall('HINCRBY', hash, 'totalsent', 1)
  if channel ~= '' then redis.pcall('PUBLISH', channel, redis.call('ZCARD', zset)) end
end
