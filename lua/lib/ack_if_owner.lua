-- Return true if the entry is pending for this consumer. A missing group counts as "not pending".
local function is_owner(stream, group, consumer, id)
  local pending = redis.pcall('XPENDING', stream, group, id, id, 1, consumer)
  if not pending.err then return pending[1] ~= nil end
  if string.find(pending.err, 'NOGROUP', 1, true) then return false end
  error(pending)
end
-- Acknowledge and delete the entries that are still pending for this consumer.
-- Returns a list: 1 acknowledged, 0 the entry belongs to another consumer or was acknowledged before.
-- Without the owner check a job could run twice: consumer A stalls, B claims the entry and runs it, A resumes and requeues
-- the job with the attempt count that A read. The job would then run a second time, in parallel with B, with an old
-- attempt count.
local function ack_if_owner(stream, group, consumer, ids)
  local owned_ids, positions, reply = {}, {}, {}
  for i, id in ipairs(ids) do
    reply[i] = 0
    if is_owner(stream, group, consumer, id) then
      owned_ids[#owned_ids + 1] = id
      positions[#positions + 1] = i
    end
  end
  for j, deleted in ipairs(ack_delete(stream, group, owned_ids)) do
    if deleted then reply[positions[j]] = 1 end
  end
  return reply
end
