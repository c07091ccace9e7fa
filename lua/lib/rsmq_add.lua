-- Put a message with an id of its own on an RSMQ queue.
local function rsmq_add(zset, hash, id, body, due, channel)
  redis.call('ZADD', zset, string.format('%.0f', due), id)
  redis.call('HSET', hash, id, body)
  redis.call('HINCRBY', hash, 'totalsent', 1)
  if channel ~= '' then redis.call('PUBLISH', channel, redis.call('ZCARD', zset)) end
end
