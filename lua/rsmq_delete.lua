-- rsmq_delete: delete a message, whoever holds it.
-- KEYS  1 zset  2 hash
-- ARGV  1 id
-- returns 1 deleted, 0 there was none
-- @include rsmq_remove
local gone, fields = rsmq_remove(KEYS[1], KEYS[2], ARGV[1])
return gone and fields and 1 or 0
