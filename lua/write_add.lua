-- write_add: put jobs on the queue at once, as often as they are sent (delivery=at_least_once).
-- KEYS  1 stream  2 delayed
-- ARGV  1 delay (ms)  2 timed (0, 1)  3.. items
-- returns how many jobs were put
-- @include add_entry
-- @include delayed_member
-- @include clock
-- @include add_staged_item
local now, delay, timed = now_ms(), tonumber(ARGV[1]), ARGV[2] == '1'
for i = 3, #ARGV do put(KEYS[1], KEYS[2], ARGV[i], timed, delay, now) end
return #ARGV - 2
