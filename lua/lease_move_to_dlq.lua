-- lease_move_to_dlq: settle leased entries and write their letters, each only if its lease still stands.
-- KEYS  1 stream  2 dlq  3 held  4 owners  5 grants  6.. dead bits
-- ARGV  1 group  2 life of the dead bits (ms)  3.. per lease: entry id, consumer, count, fence (0: shared mode), number of its dead key in KEYS (0: none), bit, number of fields and values, fields and values
-- returns for each lease 1 buried, 0 not held any more
-- @include ack_delete
-- @include lease_is_held
-- @include lease_clear
redis.call('XLEN', KEYS[2]) -- refuses a key of another type before anything is settled
local answer, i = {}, 3
while i <= #ARGV do
  local id, last = ARGV[i], i + 6 + tonumber(ARGV[i + 6])
  local held = lease_is_held(KEYS[1], ARGV[1], KEYS[4], id, ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
  local gone = held and ack_delete(KEYS[1], ARGV[1], {id})[1]
  if held and ARGV[i + 3] ~= '0' then lease_clear(KEYS[3], KEYS[4], KEYS[5], id) end
  if gone then
    redis.call('XADD', KEYS[2], '*', unpack(ARGV, i + 7, last))
    if ARGV[i + 4] ~= '0' then
      local bits = KEYS[tonumber(ARGV[i + 4])]
      redis.call('SETBIT', bits, ARGV[i + 5], 1)
      redis.call('PEXPIRE', bits, ARGV[2])
    end
  end
  answer[#answer + 1] = gone and 1 or 0
  i = last + 1
end
return answer
