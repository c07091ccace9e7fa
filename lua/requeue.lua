-- requeue: hand entries back unrun; added anew, because that wakes readers that are already waiting.
-- KEYS  1 stream
-- ARGV  1 group  2 consumer  3.. per entry: entry id, d, n
-- returns for each entry 1 handed back, 0 someone else has it or settled it first
-- @include ack_delete
-- @include ack_if_owner
-- @include add_entry
local ids = {}
for i = 3, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
local answer = ack_if_owner(KEYS[1], ARGV[1], ARGV[2], ids)
for j, settled in ipairs(answer) do
  if settled == 1 then push(KEYS[1], ARGV[j * 3 + 1], ARGV[j * 3 + 2]) end
end
return answer
