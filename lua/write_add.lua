-- write_add: add jobs to the queue without deduplication (delivery=at_least_once).
--
-- KEYS
--   1    stream
--   2    delayed
-- ARGV
--   1    delay (ms)
--   2    each item has its own due time (0, 1)
--   3..  items
-- RETURNS
--   the number of jobs added
-- @include add_entry
-- @include split_delayed_member
-- @include now_ms
-- @include add_staged_item
local now, delay, per_row_run_at = now_ms(), tonumber(ARGV[1]), ARGV[2] == '1'
for i = 3, #ARGV do add_staged_item(KEYS[1], KEYS[2], ARGV[i], per_row_run_at, delay, now) end
return #ARGV - 2
