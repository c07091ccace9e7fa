-- release: hand entries back unrun; added anew, because that wakes readers that are already waiting.
-- KEYS  1 stream
-- ARGV  1 group  2 consumer  3.. per entry: entry id, d, n
-- returns for each entry 1 handed back, 0 someone else has it or settled it first
-- @include ack_delete
-- @include ours
-- @include push
local ids, at, answer = {}, {}, {}
for i = 3, #ARGV, 3 do
  answer[i / 3] = 0
  if ours(KEYS[1], ARGV[1], ARGV[2], ARGV[i]) then
    ids[#ids + 1] = ARGV[i]
    at[#at + 1] = i
  end
end
for j, gone in ipairs(ack_delete(KEYS[1], ARGV[1], ids)) do
  if gone then
    answer[at[j] / 3] = 1
    push(KEYS[1], ARGV[at[j] + 1], ARGV[at[j] + 2])
  end
end
return answer
