-- Build the reply of lease_acquire and lease_acquire_exclusive: {status, now (ms), ms until an entry may become available
-- (-1: unknown), due time of the first delayed job (ms, 0: none), last entry id of the stream, fencing token, entries}.
local function lease_reply(stream, delayed, status, now, due_in, fencing_token, entries)
  local last_id = '0-0'
  local info = redis.call('XINFO', 'STREAM', stream)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then last_id = info[i + 1] end
  end
  local first = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')
  local delayed_due = first[2] and math.max(1, math.floor(math.min(tonumber(first[2]), 2 ^ 53))) or 0
  return {status, now, due_in, delayed_due, last_id, fencing_token, entries}
end
