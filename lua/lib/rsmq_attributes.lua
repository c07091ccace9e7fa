-- Read the values of getQueueAttributes: seven raw fields, the number of messages, the number hidden at the start of the
-- current second (as npm rsmq counts), and the number hidden now.
local function rsmq_attributes(zset, hash)
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  return {
    redis.call('HMGET', hash, 'vt', 'delay', 'maxsize', 'totalrecv', 'totalsent', 'created', 'modified'),
    redis.call('ZCARD', zset),
    redis.call('ZCOUNT', zset, time[1] .. '000', '+inf'),
    redis.call('ZCOUNT', zset, string.format('(%.0f', now), '+inf'),
  }
end
