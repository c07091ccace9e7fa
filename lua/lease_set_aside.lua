-- lease_set_aside: move a leased entry out of the stream until somebody unblocks it (shared mode, where a worker would take it).
-- KEYS  1 stream  2 aside  3 owners
-- ARGV  1 group  2.. per lease: entry id, consumer, count, number of fields and values, fields and values
-- returns for each lease 1 moved, 0 not held any more
-- @include ack_delete
-- @include lease_is_held
redis.call('XLEN', KEYS[2]) -- refuses a key of another type before anything is settled
local answer, i = {}, 2
while i <= #ARGV do
  local last = i + 3 + tonumber(ARGV[i + 3])
  local held = lease_is_held(KEYS[1], ARGV[1], KEYS[3], ARGV[i], ARGV[i + 1], ARGV[i + 2], '0')
  local gone = held and ack_delete(KEYS[1], ARGV[1], {ARGV[i]})[1]
  if gone then redis.call('XADD', KEYS[2], '*', unpack(ARGV, i + 4, last)) end
  answer[#answer + 1] = gone and 1 or 0
  i = last + 1
end
return answer
