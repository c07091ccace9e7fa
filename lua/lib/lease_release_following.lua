-- Release the leases on entries after failed_id. In an ordered queue no later entry may be processed before the failed
-- one. All leases of an ordered queue belong to one session. Released entries are available at once and the delivery is
-- not counted. Requires entry_before.
local function lease_release_following(stream, group, deadlines, owners, redeliver_at, failed_id)
  for _, id in ipairs(redis.call('ZRANGE', deadlines, 0, -1)) do
    if entry_before(failed_id, id) then
      local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
      if pending then
        redis.call('XCLAIM', stream, group, pending[2], 0, id, 'RETRYCOUNT', math.max(0, pending[4] - 1), 'JUSTID')
      end
      redis.call('ZREM', deadlines, id)
      redis.call('HDEL', owners, id)
      redis.call('ZADD', redeliver_at, 0, id)
    end
  end
end
