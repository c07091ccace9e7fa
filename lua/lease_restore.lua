-- lease_restore: turn the staged entries of a snapshot into a queue. All of it becomes visible at once.
--
-- KEYS
--   1    lease restore_staging
--   2    stream
-- ARGV
--   1    group
--   2    last delivered id of the group ('': no group)
--   3    entries read (-1: unknown)
--   4    last entry id
--   5    entries added
--   6    largest deleted id
--   7    number of staged entries
--   8..  per pending entry: entry id, consumer, idle (ms), deliveries
-- RETURNS
--   1 restored
if redis.call('EXISTS', KEYS[2]) == 1 then return redis.error_reply('CHASQUILEASE already_exists') end
if redis.call('XLEN', KEYS[1]) ~= tonumber(ARGV[7]) then return redis.error_reply('CHASQUILEASE staging_changed') end
-- A snapshot without entries: create an empty stream with the help of a temporary group.
if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('XGROUP', 'CREATE', KEYS[1], '-', '0', 'MKSTREAM') end
redis.pcall('XGROUP', 'DESTROY', KEYS[1], '-')
redis.call('XSETID', KEYS[1], ARGV[4], 'ENTRIESADDED', ARGV[5], 'MAXDELETEDID', ARGV[6])
if ARGV[2] ~= '' then
  redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], ARGV[2], 'ENTRIESREAD', ARGV[3])
  for i = 8, #ARGV, 4 do
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[i + 1], 0, ARGV[i], 'IDLE', ARGV[i + 2],
      'RETRYCOUNT', ARGV[i + 3], 'FORCE', 'JUSTID')
  end
end
redis.call('PERSIST', KEYS[1])
redis.call('RENAME', KEYS[1], KEYS[2])
return 1
