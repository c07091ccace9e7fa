-- claim_and_read: claim idle entries and read new ones. Nothing is claimed if the clock of the server has jumped forward,
-- because running jobs look idle then.
--
-- KEYS
--   1    stream
-- ARGV
--   1    group
--   2    consumer
--   3    minimum idle time (ms)
--   4    maximum number of entries
--   5    claim until (ms): the latest time at which entries may be claimed; a later one is a jump of the clock
-- RETURNS
--   {now (ms), entries}; per entry {id, fields, idle (ms), previous deliveries}
-- @include check_writes
-- @include now_ms
-- @include claim_then_read
-- @include read_entries
local now, count = now_ms(), tonumber(ARGV[4])
local min_idle = now <= tonumber(ARGV[5]) and tonumber(ARGV[3]) or nil
check_writes(KEYS[1], nil, 'XREADGROUP')
return {now, read_entries(KEYS[1], ARGV[1], ARGV[2], min_idle, count, count)}
