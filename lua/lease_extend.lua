-- lease_extend: let leases that still stand run anew from now.
-- KEYS  1 stream  2 held  3 owners
-- ARGV  1 group  2 reclaim after (ms)  3 leased for (ms)  4.. per lease: entry id, consumer, count, fence (0: shared mode)
-- returns {deadline (ms), then for each lease 1 extended, 0 not held any more}
-- @include clock
-- @include lease_is_held
local deadline = now_ms() + tonumber(ARGV[3])
local answer, idle = {deadline}, math.max(0, tonumber(ARGV[2]) - tonumber(ARGV[3]))
for i = 4, #ARGV, 4 do
  local id, fence = ARGV[i], ARGV[i + 3]
  local held = lease_is_held(KEYS[1], ARGV[1], KEYS[3], id, ARGV[i + 1], ARGV[i + 2], fence)
  if held and fence == '0' then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[i + 1], 0, id, 'IDLE', idle, 'JUSTID')
  elseif held then
    redis.call('ZADD', KEYS[2], string.format('%.0f', deadline), id)
  end
  answer[#answer + 1] = held and 1 or 0
end
return answer
