-- lease_stats: count what a queue holds.
-- KEYS  1 stream  2 delayed  3 dlq  4 held  5 later  6 blocked  7 aside
-- ARGV  1 group  2 reclaim after (ms)  3 exclusive (1, 0)
-- returns {there (1, 0), tail, first entry ('': none), length, added ever, delivered ever (-1: unknown), pending, in flight, handed back and not due, blocked, delayed, letters}
-- @include clock
-- @include lease_count_active
if redis.call('EXISTS', KEYS[1]) == 0 then return {0} end
local info, group, raw = {}, {}, redis.call('XINFO', 'STREAM', KEYS[1])
for i = 1, #raw, 2 do info[raw[i]] = raw[i + 1] end
for _, each in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  if each[2] == ARGV[1] then
    for i = 1, #each, 2 do group[each[i]] = each[i + 1] end
  end
end
local pending, live, nacked, blocked = group['pending'] or 0, 0, 0, redis.call('XLEN', KEYS[7])
local now = string.format('(%.0f', now_ms())
if ARGV[3] == '1' then
  live, nacked = redis.call('ZCOUNT', KEYS[4], now, '+inf'), redis.call('ZCOUNT', KEYS[5], now, '+inf')
  blocked = redis.call('ZCARD', KEYS[6])
elseif pending > 0 then
  live, nacked = lease_count_active(KEYS[1], ARGV[1], ARGV[2])
end
local first = info['first-entry']
return {1, info['last-generated-id'], first and first[1] or '', info['length'], info['entries-added'],
  group['entries-read'] or -1, pending, live, nacked, blocked, redis.call('ZCARD', KEYS[2]), redis.call('XLEN', KEYS[3])}
