-- lease_schedule_retries: settle leased entries and park their jobs, each only if its lease still stands.
-- KEYS  1 stream  2 delayed  3 owners
-- ARGV  1 group  2.. per lease: entry id, consumer, count, run at (ms), member
-- returns for each lease 1 parked, 0 not held any more
-- @include ack_delete
-- @include lease_is_held
redis.call('ZCARD', KEYS[2]) -- refuses a key of another type before anything is settled
local answer = {}
for i = 2, #ARGV, 5 do
  local held = lease_is_held(KEYS[1], ARGV[1], KEYS[3], ARGV[i], ARGV[i + 1], ARGV[i + 2], '0')
  local gone = held and ack_delete(KEYS[1], ARGV[1], {ARGV[i]})[1]
  if gone then redis.call('ZADD', KEYS[2], ARGV[i + 3], ARGV[i + 4]) end
  answer[#answer + 1] = gone and 1 or 0
end
return answer
