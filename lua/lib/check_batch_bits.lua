local checked_batch_bits = false
-- Raise an error if this user may not run the commands of set_batch_bit. Call it before the first write.
-- position is the position of the batch in KEYS ('0': none); the done bitmap and the dead bitmap follow it.
-- All batches of a queue have the same key pattern, so only the first one of a call is checked. Requires check_writes.
local function check_batch_bits(position)
  if checked_batch_bits or position == '0' then return end
  checked_batch_bits = true
  local first = tonumber(position)
  check_writes(KEYS[first], nil, 'HMGET', 'PEXPIRETIME')
  check_writes(KEYS[first + 1], nil, 'GETBIT', 'SETBIT', 'PEXPIREAT')
  check_writes(KEYS[first + 2], nil, 'GETBIT', 'SETBIT', 'PEXPIREAT')
end
