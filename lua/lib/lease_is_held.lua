-- Return true if the lease is still valid. In exclusive mode the fencing token and the consumer must match the stored
-- owner ('<fencing token>:<session>:<consumer>'). In shared mode (fencing token 0) the owner and the delivery count of the
-- pending entry must match.
local function lease_is_held(stream, group, owners, id, consumer, deliveries, fencing_token)
  if fencing_token ~= '0' then
    local token, name = string.match(redis.call('HGET', owners, id) or '', '^(%d+):[^:]*:(.*)$')
    return token == fencing_token and name == consumer
  end
  local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
  return pending ~= nil and pending[2] == consumer and pending[4] == tonumber(deliveries)
end
