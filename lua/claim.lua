-- claim: take over idle entries, in the shape of XREADGROUP ... CLAIM (portable dialect only).
-- KEYS  1 stream
-- ARGV  1 group  2 consumer  3 idle for at least (ms)  4 at most
-- returns for each entry {id, fields, idle (ms), deliveries before this one}
local claimed = {}
local pending = redis.call('XPENDING', KEYS[1], ARGV[1], 'IDLE', ARGV[3], '-', '+', ARGV[4])
for _, p in ipairs(pending) do
  local got = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], p[1])
  if got[1] and got[1][2] then
    claimed[#claimed + 1] = {got[1][1], got[1][2], p[3], p[4]}
  else
    -- Deleted or trimmed away while pending: nothing is left to deliver.
    redis.call('XACK', KEYS[1], ARGV[1], p[1])
  end
end
return claimed
