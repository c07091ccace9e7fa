#!lua flags=allow-oom
-- ack_with_results: take finished entries off the stream; where that was ours to do, set the batch bit and keep the result.
-- KEYS  1 stream  2.. bits and result keys
-- ARGV  1 group  2 life of the bits (ms)  3.. per entry: entry id, number of its bits in KEYS (0: none), number of the opposite bits, bit, number of its result key in KEYS (0: none), result, life of the result (s)
-- returns for each entry 1 settled, 0 someone else settled it first
-- @include ack_delete
local ids = {}
for i = 3, #ARGV, 7 do ids[#ids + 1] = ARGV[i] end
local gone, answer, touched = ack_delete(KEYS[1], ARGV[1], ids), {}, {}
for j = 1, #ids do
  local p = j * 7 - 4
  answer[j] = gone[j] and 1 or 0
  if gone[j] then
    if ARGV[p + 1] ~= '0' then
      local bits, other = KEYS[tonumber(ARGV[p + 1])], KEYS[tonumber(ARGV[p + 2])]
      redis.call('SETBIT', bits, ARGV[p + 3], 1)
      touched[bits] = true
      -- A replay by ChasquiMQ itself leaves the dead bit: the job must not count twice.
      if redis.call('GETBIT', other, ARGV[p + 3]) == 1 then redis.call('SETBIT', other, ARGV[p + 3], 0) end
    end
    -- Out of memory loses the result, never the ack.
    if ARGV[p + 4] ~= '0' then
      redis.pcall('SET', KEYS[tonumber(ARGV[p + 4])], ARGV[p + 5], 'EX', ARGV[p + 6])
    end
  end
end
for bits in pairs(touched) do redis.call('PEXPIRE', bits, ARGV[2]) end
return answer
