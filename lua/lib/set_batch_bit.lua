local batch_states, creation_times, expiring_bitmaps = {}, {}, {}
-- Read what a bit of this batch part depends on: the number of jobs sent, and when the oldest job of the batch was created.
local function read_batch_state(batch, part)
  local fields = redis.pcall('HMGET', batch, 'sent:' .. part, 'oldest_job')
  if fields.err then return {sent = 0, oldest_job = 0} end
  return {sent = tonumber(fields[1]) or 0, oldest_job = tonumber(fields[2]) or 0}
end
-- Set the done bit (or, if dead is true, the dead bit) of a job in its batch, and clear the opposite bit.
-- position is the position of the batch in KEYS ('0': none); the done bitmap and the dead bitmap follow it. part is the
-- number of the part, ':' and the creation time of the job in ms (0: not known).
-- The bitmaps expire together with the batch. A bit is set only for an index that was sent: the id of a job from another
-- program could name any index, and its bit would allocate up to 512 MiB. A job that is older than all jobs of the batch
-- belongs to an earlier batch with the same id.
-- Returns true if the job belongs to the batch.
-- Errors are ignored, because the entry is already acknowledged: a key of the wrong type affects only its own bits.
local function set_batch_bit(position, part, index, dead)
  if position == '0' then return end
  local first = tonumber(position)
  local batch, bitmap, opposite = KEYS[first], KEYS[first + 1], KEYS[first + 2]
  if dead then bitmap, opposite = opposite, bitmap end
  local state, created = batch_states[first], creation_times[part]
  if not state then
    state = read_batch_state(batch, string.match(part, '^%d+'))
    batch_states[first] = state
  end
  if not created then
    created = tonumber(string.match(part, ':(%d+)$') or '0')
    creation_times[part] = created
  end
  if tonumber(index) >= state.sent or created > 0 and created < state.oldest_job then return end
  if type(redis.pcall('SETBIT', bitmap, index, 1)) == 'table' then return true end
  -- A replay by ChasquiMQ does not clear the dead bit. Clear it here, so that the job is not counted twice.
  if redis.pcall('GETBIT', opposite, index) == 1 then redis.pcall('SETBIT', opposite, index, 0) end
  if expiring_bitmaps[bitmap] then return true end
  expiring_bitmaps[bitmap] = true
  local expires_at = redis.pcall('PEXPIRETIME', batch)
  if type(expires_at) == 'number' and expires_at > 0 then redis.pcall('PEXPIREAT', bitmap, expires_at) end
  return true
end
