-- replay: move dead letters back to the stream, each exactly once and each job at most as often as the limit
-- allows.
--
-- KEYS
--   1    dlq
--   2    stream
--   3    cancel requests (the cancel request of a replayed job is deleted)
--   4..  per dead letter: replay count, dead bitmap
-- ARGV
--   1    maximum number of replays per job (0: no limit)
--   2    TTL of the replay count (ms)
--   3..  per dead letter: dead letter id, d, n, bit of the job in its batch (-1: none), job id
-- RETURNS
--   a string with one character per dead letter: '1' replayed, '0' not in the DLQ any more, 'x' replay limit reached
-- @include check_writes
-- @include add_entry
local flags, max_replays = {}, tonumber(ARGV[1])
check_writes(KEYS[1], 'stream', 'XDEL')
check_writes(KEYS[2], 'stream', 'XADD')
check_writes(KEYS[3], 'hash', 'HDEL')
for i = 3, #ARGV, 5 do
  local j = (i - 3) / 5
  local replay_count, dead_bitmap = KEYS[4 + j * 2], KEYS[5 + j * 2]
  if j == 0 then -- Before the first write. The other keys have the same patterns.
    check_writes(replay_count, nil, 'GET', 'INCR', 'PEXPIRE')
    check_writes(dead_bitmap, nil, 'GETBIT', 'SETBIT')
  end
  -- A counter that is not readable, because another program has written it, does not block the replay.
  if max_replays > 0 and (tonumber(redis.pcall('GET', replay_count)) or 0) >= max_replays then
    flags[#flags + 1] = 'x'
  elseif redis.call('XDEL', KEYS[1], ARGV[i]) == 0 then
    flags[#flags + 1] = '0'
  else
    redis.call('HDEL', KEYS[3], ARGV[i + 4]) -- Otherwise the first worker would drop the job.
    add_entry(KEYS[2], ARGV[i + 1], ARGV[i + 2])
    redis.pcall('INCR', replay_count)
    redis.pcall('PEXPIRE', replay_count, ARGV[2])
    -- Clear the bit only if it is set: SETBIT on a missing key would create a key without a TTL.
    if ARGV[i + 3] ~= '-1' and redis.pcall('GETBIT', dead_bitmap, ARGV[i + 3]) == 1 then
      redis.pcall('SETBIT', dead_bitmap, ARGV[i + 3], 0)
    end
    flags[#flags + 1] = '1'
  end
end
return table.concat(flags)
