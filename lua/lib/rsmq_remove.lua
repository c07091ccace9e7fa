local function rsmq_remove(zset, hash, id)
  local gone = redis.call('ZREM', zset, id)
  local fields = redis.call('HDEL', hash, id, id .. ':rc', id .. ':fr')
  return gone == 1, fields > 0
end
