-- write_commit: let the staged write of a ship win, or say which one has won before.
-- KEYS  1 ship  2 batch  3 stages  4.. the stages of this write, then keys to clear for a ship that is sent anew
-- ARGV  1 write  2 anew (0, 1)  3 number of stages  4 rows  5 number of header fields and values  6.. header fields and values, then per stage: part, rows
-- returns {verdict, about}: begun and the write; publishing and the write that has won; done and the total; lost and the stage; taken
local state = redis.call('HGET', KEYS[1], 'state')
if state then return {'publishing', redis.call('HGET', KEYS[1], 'write')} end
local total = redis.call('HGET', KEYS[2], 'total')
if ARGV[2] == '0' then
  if total then return {'done', total} end
  -- Jobs of this batch are on the queue already, sent in another way: their indexes would clash.
  if redis.call('EXISTS', KEYS[2]) == 1 then return {'taken', ''} end
end
local count, header = tonumber(ARGV[3]), tonumber(ARGV[5])
for i = 1, count do
  local rows = tonumber(ARGV[4 + header + i * 2 + 1])
  if redis.call('LLEN', KEYS[3 + i]) ~= rows then return {'lost', KEYS[3 + i]} end
end
if ARGV[2] == '1' then
  redis.call('UNLINK', KEYS[2])
  for i = 4 + count, #KEYS do redis.call('UNLINK', KEYS[i]) end
end
for i = 1, count do
  redis.call('PERSIST', KEYS[3 + i])
  redis.call('HSET', KEYS[1], 'stage:' .. ARGV[4 + header + i * 2], KEYS[3 + i])
end
for i = 6, 5 + header, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('HSET', KEYS[1], 'state', 'publishing', 'write', ARGV[1], 'rows', ARGV[4])
redis.call('PERSIST', KEYS[3])
return {'begun', ARGV[1]}
