-- rsmq_delete: delete a message, whether it is visible or hidden.
--
-- KEYS
--   1    zset
--   2    hash
-- ARGV
--   1    id
-- RETURNS
--   1 deleted, 0 it did not exist
-- @include check_writes
-- @include rsmq_remove
check_writes(KEYS[2], 'hash', 'HDEL')
local removed, had_fields = rsmq_remove(KEYS[1], KEYS[2], ARGV[1])
return removed and had_fields and 1 or 0
