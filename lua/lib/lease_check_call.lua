-- Raise an error if this user may not run the commands of store_reply and lease_is_held, or if a key has another type.
-- Call it before the first write. Requires check_writes.
local function lease_check_call(marker, stream, owners)
  check_writes(marker, nil, 'SET')
  check_writes(stream, 'stream', 'XPENDING')
  check_writes(owners, 'hash', 'HGET')
end
