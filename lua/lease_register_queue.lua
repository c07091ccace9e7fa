-- lease_register_queue: add a queue to the list of its organisation, within the quota.
--
-- KEYS
--   1    organisation
-- ARGV
--   1    queue
--   2    maximum number of queues
-- RETURNS
--   1 added, 0 it was already in the list
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 1 then return 0 end
if redis.call('SCARD', KEYS[1]) >= tonumber(ARGV[2]) then
  return redis.error_reply('CHASQUILEASE quota_exceeded ' .. ARGV[2])
end
return redis.call('SADD', KEYS[1], ARGV[1])
