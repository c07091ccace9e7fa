-- replay: move dead letters back to the stream, each exactly once and each job at most as often as the limit
-- allows.
--
-- KEYS
--   1    dlq
--   2    stream
--   3..  per dead letter: replay count, dead bitmap
-- ARGV
--   1    maximum number of replays per job (0: no limit)
--   2    TTL of the replay count (ms)
--   3..  per dead letter: dead letter id, d, n, bit of the job in its batch (-1: none)
-- RETURNS
--   a string with one character per dead letter: '1' replayed, '0' not in the DLQ any more, 'x' replay limit reached
-- @include add_entry
redis.call('XLEN', KEYS[2]) -- Fail on a key of the wrong type before the first write.
local flags, max_replays = {}, tonumber(ARGV[1])
for i = 3, #ARGV, 4 do
  local j = (i - 3) / 4
  local replay_count, dead_bitmap = KEYS[3 + j * 2], KEYS[4 + j * 2]
  if max_replays > 0 and tonumber(redis.call('GET', replay_count) or '0') >= max_replays then
    flags[#flags + 1] = 'x'
  elseif redis.call('XDEL', KEYS[1], ARGV[i]) == 0 then
    flags[#flags + 1] = '0'
  else
    add_entry(KEYS[2], ARGV[i + 1], ARGV[i + 2])
    redis.call('INCR', replay_count)
    redis.call('PEXPIRE', replay_count, ARGV[2])
    -- Clear the bit only if it is set: SETBIT on a missing key would create a key without a TTL.
    if ARGV[i + 3] ~= '-1' and redis.call('GETBIT', dead_bitmap, ARGV[i + 3]) == 1 then
      redis.call('SETBIT', dead_bitmap, ARGV[i + 3], 0)
    end
    flags[#flags + 1] = '1'
  end
end
return table.concat(flags)
