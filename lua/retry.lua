-- retry: settle failed entries and park their jobs again, each exactly once.
-- KEYS  1 stream  2 delayed
-- ARGV  1 group  2.. per entry: entry id, run at (ms), member
-- returns for each entry 1 parked, 0 someone else settled it first
-- @include ack_delete
redis.call('ZCARD', KEYS[2]) -- refuses a key of another type before anything is settled
local ids = {}
for i = 2, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
local gone, answer = ack_delete(KEYS[1], ARGV[1], ids), {}
for i = 1, #ids do
  answer[i] = gone[i] and 1 or 0
  if gone[i] then redis.call('ZADD', KEYS[2], ARGV[i * 3], ARGV[i * 3 + 1]) end
end
return answer
