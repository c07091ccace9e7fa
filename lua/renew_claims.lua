-- renew_claims: renew entries that are still ours, and say which are not any more.
-- KEYS  1 stream
-- ARGV  1 group  2 consumer  3.. entry ids
-- returns for each entry 1 renewed, 0 taken over or settled by someone else
local answer = {}
for i = 3, #ARGV do
  local held = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])
  if held[1] then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'JUSTID')
  end
  answer[i - 2] = held[1] and 1 or 0
end
return answer
