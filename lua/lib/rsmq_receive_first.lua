-- The first visible message, counted as received: {id, body, rc, fr}, or nil. `now` is a string in ms.
local function rsmq_receive_first(zset, hash, now)
  local found = redis.call('ZRANGEBYSCORE', zset, '-inf', now, 'LIMIT', 0, 1)
  local id = found[1]
  if not id then return nil end
  redis.call('HINCRBY', hash, 'totalrecv', 1)
  local body = redis.call('HGET', hash, id)
  local rc = redis.call('HINCRBY', hash, id .. ':rc', 1)
  local fr = now
  if rc > 1 then fr = redis.call('HGET', hash, id .. ':fr') end
  return {id, body, rc, fr}
end
