-- lease_nack: hand leased entries back, available after a delay; id, order and delivery count stay.
-- KEYS  1 stream  2 held  3 later  4 owners
-- ARGV  1 group  2 reclaim after (ms)  3 delay (ms)  4 ordered (1, 0)  5.. per lease: entry id, consumer, count, fence (0: shared mode)
-- returns for each lease 1 handed back, 0 not held any more
-- @include clock
-- @include entry_order
-- @include lease_is_held
-- @include lease_release_following
local answer, delay = {}, tonumber(ARGV[3])
local due = string.format('%.0f', now_ms() + delay)
for i = 5, #ARGV, 4 do
  local id, consumer, fence = ARGV[i], ARGV[i + 1], ARGV[i + 3]
  local held = lease_is_held(KEYS[1], ARGV[1], KEYS[4], id, consumer, ARGV[i + 2], fence)
  if held and fence == '0' then
    -- To another owner, so that this lease cannot be used again; idle for so long that it is claimable in time.
    redis.call('XCLAIM', KEYS[1], ARGV[1], '-nacked', 0, id, 'IDLE', math.max(0, tonumber(ARGV[2]) - delay), 'JUSTID')
  elseif held then
    redis.call('ZREM', KEYS[2], id)
    redis.call('HDEL', KEYS[4], id)
    redis.call('ZADD', KEYS[3], due, id)
  end
  answer[#answer + 1] = held and 1 or 0
end
for i = 5, #ARGV, 4 do
  if ARGV[4] == '1' and answer[(i - 1) / 4] == 1 then
    lease_release_following(KEYS[1], ARGV[1], KEYS[2], KEYS[4], KEYS[3], ARGV[i + 1], ARGV[i])
  end
end
return answer
