local function push(stream, d, n)
  if n == '' then
    return redis.call('XADD', stream, '*', 'd', d)
  end
  return redis.call('XADD', stream, '*', 'd', d, 'n', n)
end
