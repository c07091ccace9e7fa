-- lease_register_queue: add a queue to the list of its organisation, within the quota.
--
-- KEYS
--   1    idempotency marker
--   2    organisation
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2    queue
--   3    maximum number of queues
-- RETURNS
--   1 added, 0 it was already in the list
-- @include check_writes
-- @include cached_reply
-- @include store_reply
local first_reply = cached_reply(KEYS[1])
if first_reply then return first_reply end
check_writes(KEYS[1], nil, 'SET')
if redis.call('SISMEMBER', KEYS[2], ARGV[2]) == 1 then return 0 end
if redis.call('SCARD', KEYS[2]) >= tonumber(ARGV[3]) then
  return redis.error_reply('CHASQUILEASE quota_exceeded ' .. ARGV[3])
end
return store_reply(KEYS[1], ARGV[1], redis.call('SADD', KEYS[2], ARGV[2]))
