-- Receive the first visible message: count the receive and return {id, body, receive count, first received (ms)}.
-- Returns nil if no message is visible. now is the time in ms as a string.
local function rsmq_receive_first(zset, hash, now)
  local visible = redis.call('ZRANGEBYSCORE', zset, '-inf', now, 'LIMIT', 0, 1)
  local id = visible[1]
  if not id then return nil end
  local body = redis.call('HGET', hash, id)
  local receive_count = redis.call('HINCRBY', hash, id .. ':rc', 1)
  redis.pcall('HINCRBY', hash, 'totalrecv', 1) -- Only statistics: another program may have written text into it.
  local first_received = now
  if receive_count > 1 then first_received = redis.call('HGET', hash, id .. ':fr') end
  return {id, body, receive_count, first_received}
end
