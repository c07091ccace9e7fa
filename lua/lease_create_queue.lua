-- lease_create_queue: create a queue with its consumer group. An existing exclusive queue must have the same
-- configuration.
--
-- KEYS
--   1    idempotency marker
--   2    stream
--   3    lease config
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2    group
--   3    config ('': shared mode, which stores none)
-- RETURNS
--   1
-- @include check_writes
-- @include cached_reply
-- @include store_reply
-- @include lease_require_exclusive
local first_reply = cached_reply(KEYS[1])
if first_reply then return first_reply end
check_writes(KEYS[1], nil, 'SET')
check_writes(KEYS[2], 'stream', 'XGROUP|CREATE')
if ARGV[3] ~= '' then
  local problem = lease_require_exclusive(KEYS[2], ARGV[2], KEYS[3], ARGV[3])
  if problem then return problem end
else
  redis.pcall('XGROUP', 'CREATE', KEYS[2], ARGV[2], '0', 'MKSTREAM') -- The error BUSYGROUP means that the group exists.
end
return store_reply(KEYS[1], ARGV[1], 1)
