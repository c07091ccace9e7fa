-- schedule_retries: settle failed entries and park their jobs again, each exactly once.
-- KEYS  1 stream  2 delayed
-- ARGV  1 group  2 consumer  3.. per entry: entry id, run at (ms), member
-- returns for each entry 1 parked, 0 someone else has it or settled it first
-- @include ack_delete
-- @include ack_if_owner
redis.call('ZCARD', KEYS[2]) -- refuses a key of another type before anything is settled
local ids = {}
for i = 3, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
local answer = ack_if_owner(KEYS[1], ARGV[1], ARGV[2], ids)
for j, settled in ipairs(answer) do
  if settled == 1 then redis.call('ZADD', KEYS[2], ARGV[j * 3 + 1], ARGV[j * 3 + 2]) end
end
return answer
