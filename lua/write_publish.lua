-- write_publish: move the next staged jobs of one part to the queue, each exactly once, whoever asks.
-- KEYS  1 stream  2 delayed  3 ship  4 batch  5 stage
-- ARGV  1 write  2 part  3 at most
-- returns how many jobs were moved
-- @include add_entry
-- @include delayed_member
-- @include clock
-- @include add_staged_item
local ship = redis.call('HMGET', KEYS[3], 'write', 'delay', 'timed', 'life', 'created', 'source')
if ship[1] ~= ARGV[1] then return 0 end
local items = redis.call('LPOP', KEYS[5], ARGV[3])
if not items then return 0 end
local now, delay, timed = now_ms(), tonumber(ship[2]), ship[3] == '1'
for i = 1, #items do put(KEYS[1], KEYS[2], items[i], timed, delay, now) end
redis.call('HINCRBY', KEYS[4], 'sent:' .. ARGV[2], #items)
redis.call('HSETNX', KEYS[4], 'created', ship[5])
redis.call('HSETNX', KEYS[4], 'source', ship[6])
redis.call('PEXPIRE', KEYS[4], ship[4])
return #items
