-- Return an error reply if the batch is cancelled, otherwise nil. Scripts that add jobs to a batch call this before their
-- first write.
local function check_batch_not_cancelled(batch)
  local cancelled = redis.call('HGET', batch, 'cancelled')
  if cancelled then return redis.error_reply('CHASQUICANCELLED ' .. cancelled) end
end
