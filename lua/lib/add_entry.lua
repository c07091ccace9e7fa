-- Append a job to the stream and return its entry id. The field n is omitted if the job has no name.
local function add_entry(stream, d, n)
  if n == '' then
    return redis.call('XADD', stream, '*', 'd', d)
  end
  return redis.call('XADD', stream, '*', 'd', d, 'n', n)
end
