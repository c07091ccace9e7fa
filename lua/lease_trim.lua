-- lease_trim: delete waiting entries in order and stop at the first one that is leased, nacked or blocked.
--
-- KEYS
--   1    idempotency marker
--   2    stream
--   3..  batch, done bitmap and dead bitmap of each batch part
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2    group
--   3..  per entry: entry id, position of its batch in KEYS (0: none), part with creation time, index
-- RETURNS
--   the number of entries, counted from the first one given, that were deleted now or before
-- @include check_writes
-- @include check_batch_bits
-- @include set_batch_bit
-- @include cached_reply
-- @include store_reply
local first_reply = cached_reply(KEYS[1])
if first_reply then return first_reply end
check_writes(KEYS[1], nil, 'SET')
check_writes(KEYS[2], 'stream', 'XPENDING')
for i = 3, #ARGV, 4 do check_batch_bits(ARGV[i + 1]) end
local any_pending = redis.pcall('XPENDING', KEYS[2], ARGV[2], '-', '+', 1)
local passed = 0
for i = 3, #ARGV, 4 do
  -- If the group does not exist (any_pending is an error), no entry is pending.
  if not any_pending.err and redis.call('XPENDING', KEYS[2], ARGV[2], ARGV[i], ARGV[i], 1)[1] then break end
  if redis.call('XDEL', KEYS[2], ARGV[i]) == 1 then set_batch_bit(ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], true) end
  passed = passed + 1
end
return store_reply(KEYS[1], ARGV[1], passed)
