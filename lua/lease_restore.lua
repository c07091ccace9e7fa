-- lease_restore: turn the staged parts of a snapshot into a queue. All of it becomes visible at once.
--
-- KEYS
--   1    idempotency marker
--   2    staged stream
--   3    stream
--   4..  per other part: staging key, key
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2    group
--   3    last delivered id of the group ('': no group)
--   4    entries read (-1: unknown)
--   5    last entry id
--   6    entries added
--   7    largest deleted id
--   8    number of staged entries
--   9..  per pending entry: entry id, consumer, idle (ms), deliveries
-- RETURNS
--   1 restored
-- @include check_writes
-- @include cached_reply
-- @include store_reply
local first_reply = cached_reply(KEYS[1])
if first_reply then return first_reply end
local staged = KEYS[2]
for i = 3, #KEYS, 2 do
  if redis.call('EXISTS', KEYS[i]) == 1 then return redis.error_reply('CHASQUILEASE already_exists') end
end
if redis.call('XLEN', staged) ~= tonumber(ARGV[8]) then return redis.error_reply('CHASQUILEASE staging_changed') end
for i = 4, #KEYS, 2 do
  if redis.call('EXISTS', KEYS[i]) == 0 then return redis.error_reply('CHASQUILEASE staging_changed') end
end
check_writes(KEYS[1], nil, 'SET')
check_writes(staged, 'stream', 'XGROUP|CREATE', 'XGROUP|DESTROY', 'XSETID', 'XCLAIM')
for i = 2, #KEYS, 2 do
  check_writes(KEYS[i], nil, 'PERSIST')
  if not redis.acl_check_cmd('RENAME', KEYS[i], KEYS[i + 1]) then
    return redis.error_reply("NOPERM this user has no permissions to run the 'rename' command on the key " .. KEYS[i])
  end
end
-- A snapshot without entries: create an empty stream with the help of a temporary group.
if redis.call('EXISTS', staged) == 0 then redis.call('XGROUP', 'CREATE', staged, '-', '0', 'MKSTREAM') end
redis.pcall('XGROUP', 'DESTROY', staged, '-')
redis.call('XSETID', staged, ARGV[5], 'ENTRIESADDED', ARGV[6], 'MAXDELETEDID', ARGV[7])
if ARGV[3] ~= '' then
  redis.call('XGROUP', 'CREATE', staged, ARGV[2], ARGV[3], 'ENTRIESREAD', ARGV[4])
  for i = 9, #ARGV, 4 do
    redis.call('XCLAIM', staged, ARGV[2], ARGV[i + 1], 0, ARGV[i], 'IDLE', ARGV[i + 2],
      'RETRYCOUNT', ARGV[i + 3], 'FORCE', 'JUSTID')
  end
end
for i = 2, #KEYS, 2 do
  redis.call('PERSIST', KEYS[i])
  redis.call('RENAME', KEYS[i], KEYS[i + 1])
end
return store_reply(KEYS[1], ARGV[1], 1)
