-- lease_trim: delete waiting entries in order, up to the first one that is leased, handed back or blocked.
-- KEYS  1 stream  2.. dead bits
-- ARGV  1 group  2 life of the dead bits (ms)  3.. per entry: entry id, number of its dead key in KEYS (0: none), bit
-- returns how many entries, from the first one given, were deleted or gone already
local there = redis.pcall('XPENDING', KEYS[1], ARGV[1], '-', '+', 1)
local passed = 0
for i = 3, #ARGV, 3 do
  if not there.err and redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)[1] then break end
  if redis.call('XDEL', KEYS[1], ARGV[i]) == 1 and ARGV[i + 1] ~= '0' then
    local bits = KEYS[tonumber(ARGV[i + 1])]
    redis.call('SETBIT', bits, ARGV[i + 2], 1)
    redis.call('PEXPIRE', bits, ARGV[2])
  end
  passed = passed + 1
end
return passed
