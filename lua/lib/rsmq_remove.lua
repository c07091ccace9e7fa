-- Delete a message. Returns whether its id was in the sorted set, and whether it had fields in the hash.
local function rsmq_remove(zset, hash, id)
  local removed = redis.call('ZREM', zset, id)
  local fields = redis.call('HDEL', hash, id, id .. ':rc', id .. ':fr')
  return removed == 1, fields > 0
end
