-- move_to_dlq: settle hopeless entries and write their letters, each exactly once.
-- KEYS  1 stream  2 dlq  3.. dead bits
-- ARGV  1 group  2 letters kept (0: all)  3 life of the dead bits (ms)  4.. per entry: entry id, number of its dead key in KEYS (0: none), bit, number of fields and values, fields and values
-- returns for each entry 1 buried, 0 someone else settled it first
-- @include ack_delete
redis.call('XLEN', KEYS[2]) -- refuses a key of another type before anything is settled
local ids, at = {}, {}
local i = 4
while i <= #ARGV do
  ids[#ids + 1] = ARGV[i]
  at[#at + 1] = i
  i = i + 4 + tonumber(ARGV[i + 3])
end
local gone, answer = ack_delete(KEYS[1], ARGV[1], ids), {}
for j, p in ipairs(at) do
  answer[j] = gone[j] and 1 or 0
  if gone[j] then
    local call = {'XADD', KEYS[2]}
    if ARGV[2] ~= '0' then
      call[3], call[4], call[5] = 'MAXLEN', '~', ARGV[2]
    end
    call[#call + 1] = '*'
    for f = p + 4, p + 3 + tonumber(ARGV[p + 3]) do call[#call + 1] = ARGV[f] end
    redis.call(unpack(call))
    if ARGV[p + 1] ~= '0' then
      local bits = KEYS[tonumber(ARGV[p + 1])]
      redis.call('SETBIT', bits, ARGV[p + 2], 1)
      redis.call('PEXPIRE', bits, ARGV[3])
    end
  end
end
return answer
