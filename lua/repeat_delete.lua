-- repeat_delete: delete a repeatable job and its spec.
--
-- KEYS
--   1    repeat
--   2    repeat spec
-- ARGV
--   1    repeat key
-- RETURNS
--   1 deleted, 0 it did not exist
redis.call('DEL', KEYS[2])
return redis.call('ZREM', KEYS[1], ARGV[1])
