-- release: hand entries back unrun; added anew, because that wakes readers that are already waiting.
-- KEYS  1 stream
-- ARGV  1 group  2.. per entry: entry id, d, n
-- returns for each entry 1 handed back, 0 someone else settled it first
-- @include ack_delete
-- @include push
local ids = {}
for i = 2, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
local gone, answer = ack_delete(KEYS[1], ARGV[1], ids), {}
for i = 1, #ids do
  answer[i] = gone[i] and 1 or 0
  if gone[i] then push(KEYS[1], ARGV[i * 3], ARGV[i * 3 + 1]) end
end
return answer
