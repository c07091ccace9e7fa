-- lease_block: set a leased entry aside until somebody unblocks it (exclusive mode); an ordered line ends there.
-- KEYS  1 stream  2 held  3 later  4 owners  5 blocked
-- ARGV  1 group  2 ordered (1, 0)  3.. per lease: entry id, consumer, count, fence
-- returns for each lease 1 blocked, 0 not held any more
-- @include entry_order
-- @include lease_is_held
-- @include lease_release_following
local answer = {}
for i = 3, #ARGV, 4 do
  local id, consumer = ARGV[i], ARGV[i + 1]
  local held = lease_is_held(KEYS[1], ARGV[1], KEYS[4], id, consumer, ARGV[i + 2], ARGV[i + 3])
  if held then
    redis.call('ZREM', KEYS[2], id)
    redis.call('HDEL', KEYS[4], id)
    redis.call('ZADD', KEYS[5], ARGV[i + 2], id)
    if ARGV[2] == '1' then lease_release_following(KEYS[1], ARGV[1], KEYS[2], KEYS[4], KEYS[3], consumer, id) end
  end
  answer[#answer + 1] = held and 1 or 0
end
return answer
