-- schedule_retries: acknowledge failed entries and add their jobs to the delayed set, each exactly once.
--
-- KEYS
--   1    stream
--   2    delayed
-- ARGV
--   1    group
--   2    consumer
--   3..  per entry: entry id, run at (ms), delayed member
-- RETURNS
--   for each entry: 1 scheduled, 0 another consumer claimed or acknowledged it first
-- @include check_writes
-- @include check_ack_delete
-- @include ack_delete
-- @include ack_if_owner
-- @include add_delayed
check_writes(KEYS[2], 'zset', 'ZADD')
check_ack_delete(KEYS[1])
local ids = {}
for i = 3, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
local reply = ack_if_owner(KEYS[1], ARGV[1], ARGV[2], ids)
for j, acked in ipairs(reply) do
  if acked == 1 then add_delayed(KEYS[2], ARGV[j * 3 + 1], ARGV[j * 3 + 2]) end
end
return reply
