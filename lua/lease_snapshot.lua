-- lease_snapshot: read the whole state of a queue at one moment.
-- KEYS  1 stream  2 delayed  3 held  4 later  5 owners  6 blocked  7 grants  8 fence  9 config  10 producers  11 aside
-- ARGV  1 group  2 entries at most
-- returns {tail, entries added, largest deleted id, cursor of the group ('': none), entries read (-1: unknown), entries, pending, delayed, held, later, owners, blocked, grants, fence, config, producers, aside}
if redis.call('EXISTS', KEYS[1]) == 0 then return redis.error_reply('CHASQUILEASE unknown') end
local info, group, raw = {}, {}, redis.call('XINFO', 'STREAM', KEYS[1])
for i = 1, #raw, 2 do info[raw[i]] = raw[i + 1] end
if info['length'] > tonumber(ARGV[2]) then return redis.error_reply('CHASQUILEASE large ' .. info['length']) end
for _, each in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  if each[2] == ARGV[1] then
    for i = 1, #each, 2 do group[each[i]] = each[i + 1] end
  end
end
local pending = {}
if group['pending'] and group['pending'] > 0 then
  pending = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', group['pending'])
end
local function scored(key) return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
return {info['last-generated-id'], info['entries-added'], info['max-deleted-entry-id'],
  group['last-delivered-id'] or '', group['entries-read'] or -1, redis.call('XRANGE', KEYS[1], '-', '+'), pending,
  scored(KEYS[2]), scored(KEYS[3]), scored(KEYS[4]), redis.call('HGETALL', KEYS[5]), scored(KEYS[6]),
  redis.call('HGETALL', KEYS[7]), redis.call('GET', KEYS[8]) or '0', redis.call('GET', KEYS[9]) or '',
  redis.call('HGETALL', KEYS[10]), redis.call('XRANGE', KEYS[11], '-', '+')}
