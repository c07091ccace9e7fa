-- Set a poisoned entry aside, with a copy among the letters if `letter`; the entry itself stays where it is.
local function lease_block_entry(stream, dlq, blocked, id, count, now, letter)
  redis.call('ZADD', blocked, count, id)
  local entry = letter and redis.call('XRANGE', stream, id, id)[1]
  if not entry then return end
  local call, fields = {'XADD', dlq, '*', 'd', ''}, entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == 'd' then call[5] = fields[i + 1] end
  end
  for i = 1, #fields, 2 do
    if fields[i] == 'n' then call[6], call[7] = 'n', fields[i + 1] end
  end
  for _, word in ipairs({'source_id', id, 'reason', 'retries_exhausted', 'attempts', count, 'failed_at', now}) do
    call[#call + 1] = word
  end
  redis.call(unpack(call))
end
