-- What getQueueAttributes reads: seven raw fields, messages, hidden since the current second began, hidden now.
local function rsmq_attributes(zset, hash)
  local time = redis.call('TIME')
  local ms = time[1] * 1000 + math.floor(time[2] / 1000)
  return {
    redis.call('HMGET', hash, 'vt', 'delay', 'maxsize', 'totalrecv', 'totalsent', 'created', 'modified'),
    redis.call('ZCARD', zset),
    redis.call('ZCOUNT', zset, time[1] .. '000', '+inf'),
    redis.call('ZCOUNT', zset, string.format('(%.0f', ms), '+inf'),
  }
end
