-- write_finalize_staged: seal the batch of a ship whose jobs are all on the queue, and sweep what was staged.
-- KEYS  1 ship  2 batch  3 stages  4.. staged lists
-- ARGV  1 write
-- returns the total; -1 jobs are still staged; -2 there is neither such a write nor a sealed batch
local total = redis.call('HGET', KEYS[2], 'total')
local ship = redis.call('HMGET', KEYS[1], 'write', 'rows', 'parts', 'life', 'created', 'source')
if ship[1] ~= ARGV[1] then return total and tonumber(total) or -2 end
local sent, values = 0, redis.call('HGETALL', KEYS[2])
for i = 1, #values, 2 do
  if string.sub(values[i], 1, 5) == 'sent:' then sent = sent + tonumber(values[i + 1]) end
end
if sent ~= tonumber(ship[2]) then return -1 end
redis.call('HSET', KEYS[2], 'total', ship[2], 'parts', ship[3])
redis.call('HSETNX', KEYS[2], 'created', ship[5])
redis.call('HSETNX', KEYS[2], 'source', ship[6])
redis.call('PEXPIRE', KEYS[2], ship[4])
for i = 3, #KEYS do redis.call('UNLINK', KEYS[i]) end
redis.call('UNLINK', KEYS[1])
return sent
