#!lua flags=allow-oom
-- ack: acknowledge finished entries and delete them from the stream.
--
-- KEYS
--   1    stream
-- ARGV
--   1    group
--   2..  entry ids
-- RETURNS
--   for each entry: 1 acknowledged, 0 another consumer acknowledged it first
-- @include check_writes
-- @include check_ack_delete
-- @include ack_delete
check_ack_delete(KEYS[1])
local ids, reply = {}, {}
for i = 2, #ARGV do ids[i - 1] = ARGV[i] end
local deleted = ack_delete(KEYS[1], ARGV[1], ids)
for j = 1, #ids do reply[j] = deleted[j] and 1 or 0 end
return reply
