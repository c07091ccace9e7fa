-- Return true if the lease is still valid. In exclusive mode the fencing token and the consumer must match the stored
-- owner. In shared mode (fencing token 0) the owner and the delivery count of the pending entry must match.
local function lease_is_held(stream, group, owners, id, consumer, deliveries, fencing_token)
  if fencing_token ~= '0' then return redis.call('HGET', owners, id) == fencing_token .. ':' .. consumer end
  local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
  return pending ~= nil and pending[2] == consumer and pending[4] == tonumber(deliveries)
end
