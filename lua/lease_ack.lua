#!lua flags=allow-oom
-- lease_ack: settle leased entries for good, each only if its lease still stands.
-- KEYS  1 stream  2 held  3 owners  4 grants  5.. done bits
-- ARGV  1 group  2 life of the bits (ms)  3.. per lease: entry id, consumer, count, fence (0: shared mode), number of its bits in KEYS (0: none), bit
-- returns for each lease 1 settled, 0 not held any more
-- @include ack_delete
-- @include lease_is_held
-- @include lease_clear
local answer = {}
for i = 3, #ARGV, 6 do
  local id, held = ARGV[i], lease_is_held(KEYS[1], ARGV[1], KEYS[3], ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
  local gone = held and ack_delete(KEYS[1], ARGV[1], {id})[1]
  if held and ARGV[i + 3] ~= '0' then lease_clear(KEYS[2], KEYS[3], KEYS[4], id) end
  if gone and ARGV[i + 4] ~= '0' then
    local bits = KEYS[tonumber(ARGV[i + 4])]
    redis.call('SETBIT', bits, ARGV[i + 5], 1)
    redis.call('PEXPIRE', bits, ARGV[2])
  end
  answer[#answer + 1] = gone and 1 or 0
end
return answer
