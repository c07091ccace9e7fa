-- lease_stats: count the entries of a queue by state.
--
-- KEYS
--   1    stream
--   2    delayed
--   3    dlq
--   4    lease deadlines
--   5    lease redeliver_at
--   6    lease blocked
--   7    lease blocked_entries
-- ARGV
--   1    group
--   2    claim after (ms)
--   3    exclusive (1, 0)
-- RETURNS
--   {exists (1, 0), last entry id, first entry id ('': none), length, entries added, entries delivered (-1: unknown),
--   pending, active leases, nacked and not available yet, blocked, delayed, dead letters}
-- @include now_ms
-- @include lease_count_active
if redis.call('EXISTS', KEYS[1]) == 0 then return {0} end
local info, group, raw = {}, {}, redis.call('XINFO', 'STREAM', KEYS[1])
for i = 1, #raw, 2 do info[raw[i]] = raw[i + 1] end
for _, group_info in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  if group_info[2] == ARGV[1] then
    for i = 1, #group_info, 2 do group[group_info[i]] = group_info[i + 1] end
  end
end
local pending, active, nacked, blocked = group['pending'] or 0, 0, 0, redis.call('XLEN', KEYS[7])
local now = string.format('(%.0f', now_ms())
if ARGV[3] == '1' then
  active, nacked = redis.call('ZCOUNT', KEYS[4], now, '+inf'), redis.call('ZCOUNT', KEYS[5], now, '+inf')
  blocked = redis.call('ZCARD', KEYS[6])
elseif pending > 0 then
  active, nacked = lease_count_active(KEYS[1], ARGV[1], ARGV[2])
end
local first = info['first-entry']
return {1, info['last-generated-id'], first and first[1] or '', info['length'], info['entries-added'],
  group['entries-read'] or -1, pending, active, nacked, blocked, redis.call('ZCARD', KEYS[2]), redis.call('XLEN', KEYS[3])}
