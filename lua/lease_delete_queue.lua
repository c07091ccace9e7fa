-- lease_delete_queue: delete the entries and the lease state of a queue.
--
-- KEYS
--   1    idempotency marker
--   2..  keys to delete
-- ARGV
--   1    TTL of the idempotency marker (ms)
-- RETURNS
--   the number of keys that existed
-- @include check_writes
-- @include cached_reply
-- @include store_reply
local first_reply = cached_reply(KEYS[1])
if first_reply then return first_reply end
check_writes(KEYS[1], nil, 'SET')
return store_reply(KEYS[1], ARGV[1], redis.call('UNLINK', unpack(KEYS, 2)))
