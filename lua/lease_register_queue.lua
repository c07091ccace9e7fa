-- lease_register_queue: enter a queue in the list of its organisation, if there is room.
-- KEYS  1 organisation
-- ARGV  1 queue  2 queues at most
-- returns 1 entered, 0 it was there
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 1 then return 0 end
if redis.call('SCARD', KEYS[1]) >= tonumber(ARGV[2]) then return redis.error_reply('CHASQUILEASE quota ' .. ARGV[2]) end
return redis.call('SADD', KEYS[1], ARGV[1])
