-- requeue: return entries that were read but not finished. They are added as new entries, because that wakes waiting
-- readers.
--
-- KEYS
--   1    stream
-- ARGV
--   1    group
--   2    consumer
--   3..  per entry: entry id, d, n
-- RETURNS
--   for each entry: 1 requeued, 0 another consumer claimed or acknowledged it first
-- @include check_writes
-- @include check_ack_delete
-- @include ack_delete
-- @include ack_if_owner
-- @include add_entry
check_writes(KEYS[1], nil, 'XADD')
check_ack_delete(KEYS[1])
local ids = {}
for i = 3, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
local reply = ack_if_owner(KEYS[1], ARGV[1], ARGV[2], ids)
for j, acked in ipairs(reply) do
  if acked == 1 then add_entry(KEYS[1], ARGV[j * 3 + 1], ARGV[j * 3 + 2]) end
end
return reply
