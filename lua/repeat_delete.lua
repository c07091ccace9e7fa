-- repeat_delete: delete a repeatable job and its spec.
--
-- KEYS
--   1    repeat
--   2    repeat spec
-- ARGV
--   1    repeat key
-- RETURNS
--   1 deleted, 0 it did not exist
-- @include check_writes
check_writes(KEYS[2], nil, 'DEL')
local removed = redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
return removed
