-- repeat_delete: remove a repeat and its body.
-- KEYS  1 repeat  2 spec
-- ARGV  1 repeat key
-- returns 1 removed, 0 there was none
redis.call('DEL', KEYS[2])
return redis.call('ZREM', KEYS[1], ARGV[1])
