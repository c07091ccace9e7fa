-- In an ordered queue nothing behind a failed entry may be worked on before it: what its holder has of that is
-- handed back, at once available and not counted as delivered.
local function lease_release_following(stream, group, held, owners, later, consumer, failed)
  for _, id in ipairs(redis.call('ZRANGE', held, 0, -1)) do
    local owner = redis.call('HGET', owners, id)
    if owner and string.match(owner, '^%d+:(.*)$') == consumer and entry_before(failed, id) then
      local entry = redis.call('XPENDING', stream, group, id, id, 1)[1]
      if entry then
        redis.call('XCLAIM', stream, group, consumer, 0, id, 'RETRYCOUNT', math.max(0, entry[4] - 1), 'JUSTID')
      end
      redis.call('ZREM', held, id)
      redis.call('HDEL', owners, id)
      redis.call('ZADD', later, 0, id)
    end
  end
end
