-- lease_create_queue: create a queue with its consumer group. An existing exclusive queue must have the same
-- configuration.
--
-- KEYS
--   1    stream
--   2    lease config
-- ARGV
--   1    group
--   2    config ('': shared mode, which stores none)
-- RETURNS
--   1
-- @include lease_require_exclusive
if ARGV[2] ~= '' then return lease_require_exclusive(KEYS[1], ARGV[1], KEYS[2], ARGV[2]) or 1 end
redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM') -- The error BUSYGROUP means that the group exists.
return 1
