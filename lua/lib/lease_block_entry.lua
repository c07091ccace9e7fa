-- Block an entry that has used all its deliveries. The entry stays on the stream.
-- If write_dead_letter is true, a copy of it is added to the DLQ.
local function lease_block_entry(stream, dlq, blocked, id, count, now, write_dead_letter)
  redis.call('ZADD', blocked, count, id)
  local entry = write_dead_letter and redis.call('XRANGE', stream, id, id)[1]
  if not entry then return end
  local command, fields = {'XADD', dlq, '*', 'd', ''}, entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == 'd' then command[5] = fields[i + 1] end
  end
  for i = 1, #fields, 2 do
    if fields[i] == 'n' then command[6], command[7] = 'n', fields[i + 1] end
  end
  for _, arg in ipairs({'source_id', id, 'reason', 'retries_exhausted', 'attempts', count, 'failed_at', now}) do
    command[#command + 1] = arg
  end
  redis.call(unpack(command))
end
