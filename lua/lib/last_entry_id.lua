-- Return the id of the last entry that was ever added to a stream, '0-0' if the stream does not exist.
local function last_entry_id(stream)
  local info = redis.call('EXISTS', stream) == 1 and redis.call('XINFO', 'STREAM', stream) or {}
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then return info[i + 1] end
  end
  return '0-0'
end
