-- Store the reply of this call for cached_reply, and return it.
local function store_reply(marker, ttl, reply)
  redis.call('SET', marker, cmsgpack.pack(reply), 'PX', ttl)
  return reply
end
