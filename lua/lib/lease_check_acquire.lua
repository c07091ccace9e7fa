-- Raise an error if this user may not run the commands that both modes need to lease entries, or if a key has another
-- type. Call it before the first write. Requires check_writes.
local function lease_check_acquire(marker, stream, delayed)
  check_writes(marker, nil, 'SET')
  check_writes(stream, 'stream', 'XGROUP|CREATE', 'XINFO|STREAM', 'XPENDING', 'XRANGE', 'XREADGROUP', 'XCLAIM')
  check_writes(delayed, 'zset', 'ZRANGE')
end
