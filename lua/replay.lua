-- replay: move letters back to the stream, each exactly once and no job more often than its budget.
-- KEYS  1 dlq  2 stream  3.. per letter: replays, dead
-- ARGV  1 budget (0: none)  2 life of the replay count (ms)  3.. per letter: letter id, d, n, bit of the job in its batch (-1: none)
-- returns a string with one sign a letter: 1 replayed, 0 gone already, x over its budget
-- @include add_entry
redis.call('XLEN', KEYS[2]) -- refuses a key of another type before any letter is taken
local answer, budget = {}, tonumber(ARGV[1])
for i = 3, #ARGV, 4 do
  local j = (i - 3) / 4
  local replays, dead = KEYS[3 + j * 2], KEYS[4 + j * 2]
  if budget > 0 and tonumber(redis.call('GET', replays) or '0') >= budget then
    answer[#answer + 1] = 'x'
  elseif redis.call('XDEL', KEYS[1], ARGV[i]) == 0 then
    answer[#answer + 1] = '0'
  else
    push(KEYS[2], ARGV[i + 1], ARGV[i + 2])
    redis.call('INCR', replays)
    redis.call('PEXPIRE', replays, ARGV[2])
    -- Only where it is set: else clearing it would make a key that never expires.
    if ARGV[i + 3] ~= '-1' and redis.call('GETBIT', dead, ARGV[i + 3]) == 1 then
      redis.call('SETBIT', dead, ARGV[i + 3], 0)
    end
    answer[#answer + 1] = '1'
  end
end
return table.concat(answer)
