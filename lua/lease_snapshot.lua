-- lease_snapshot: read the complete state of a queue atomically, if it is not too large.
--
-- KEYS
--   1    stream
--   2    delayed
--   3    lease deadlines
--   4    lease redeliver_at
--   5    lease owners
--   6    lease blocked
--   7    lease max_deliveries
--   8    lease fencing_token
--   9    lease config
--   10   lease producers
--   11   lease blocked_entries
-- ARGV
--   1    group
--   2    maximum number of entries on the stream, delayed and blocked
--   3    maximum size of the entries (bytes)
-- RETURNS
--   {last entry id, entries added, largest deleted id, last delivered id of the group ('': no group),
--   entries read (-1: unknown), entries, pending, delayed, deadlines, redeliver_at, owners, blocked, max_deliveries,
--   fencing_token, config, producers, blocked_entries}
-- @include lease_read_pages
if redis.call('EXISTS', KEYS[1]) == 0 then return redis.error_reply('CHASQUILEASE unknown_queue') end
local info, group, raw = {}, {}, redis.call('XINFO', 'STREAM', KEYS[1])
for i = 1, #raw, 2 do info[raw[i]] = raw[i + 1] end
local count = info['length'] + redis.call('ZCARD', KEYS[2]) + redis.call('XLEN', KEYS[11])
if count > tonumber(ARGV[2]) then return redis.error_reply('CHASQUILEASE too_large ' .. count .. ' entries') end
for _, group_info in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  if group_info[2] == ARGV[1] then
    for i = 1, #group_info, 2 do group[group_info[i]] = group_info[i + 1] end
  end
end
local parts, remaining = {}, tonumber(ARGV[3])
for _, part in ipairs({{KEYS[1], 'stream'}, {KEYS[2], 'zset'}, {KEYS[11], 'stream'}}) do
  parts[#parts + 1], remaining = lease_read_pages(part[1], part[2], remaining)
  if remaining < 0 then
    return redis.error_reply('CHASQUILEASE too_large more than ' .. ARGV[3] .. ' bytes')
  end
end
local pending = {}
if group['pending'] and group['pending'] > 0 then
  pending = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', group['pending'])
end
local function members_and_scores(key) return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
return {info['last-generated-id'], info['entries-added'], info['max-deleted-entry-id'],
  group['last-delivered-id'] or '', group['entries-read'] or -1, parts[1], pending,
  parts[2], members_and_scores(KEYS[3]), members_and_scores(KEYS[4]),
  redis.call('HGETALL', KEYS[5]), members_and_scores(KEYS[6]), redis.call('HGETALL', KEYS[7]),
  redis.call('GET', KEYS[8]) or '0', redis.call('GET', KEYS[9]) or '',
  redis.call('HGETALL', KEYS[10]), parts[3]}
