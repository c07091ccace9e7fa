-- lease_trim: delete waiting entries in order and stop at the first one that is leased, nacked or blocked.
--
-- KEYS
--   1    stream
--   2..  dead bitmaps
-- ARGV
--   1    group
--   2    TTL of the dead bitmaps (ms)
--   3..  per entry: entry id, position of its dead bitmap in KEYS (0: none), bit
-- RETURNS
--   the number of entries, counted from the first one given, that were deleted now or before
local any_pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], '-', '+', 1)
local passed = 0
for i = 3, #ARGV, 3 do
  -- If the group does not exist (any_pending is an error), no entry is pending.
  if not any_pending.err and redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)[1] then break end
  if redis.call('XDEL', KEYS[1], ARGV[i]) == 1 and ARGV[i + 1] ~= '0' then
    local bitmap = KEYS[tonumber(ARGV[i + 1])]
    redis.call('SETBIT', bitmap, ARGV[i + 2], 1)
    redis.call('PEXPIRE', bitmap, ARGV[2])
  end
  passed = passed + 1
end
return passed
