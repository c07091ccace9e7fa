-- attach_batch: store the owner of a batch and read its state. Only the owner can cancel the batch with its name.
--
-- KEYS
--   1    batch
--   2    done bitmap of the first part
--   3    dead bitmap of the first part
-- ARGV
--   1    owner
-- RETURNS
--   {fields and values of the batch (empty: it does not exist), {number of done jobs, number of dead jobs}}
-- @include check_writes
local counts = {redis.call('BITCOUNT', KEYS[2]), redis.call('BITCOUNT', KEYS[3])}
if redis.call('EXISTS', KEYS[1]) == 0 then return {{}, counts} end
check_writes(KEYS[1], 'hash', 'HSET', 'HGETALL')
redis.call('HSET', KEYS[1], 'owner', ARGV[1])
return {redis.call('HGETALL', KEYS[1]), counts}
