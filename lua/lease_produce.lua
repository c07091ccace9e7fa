-- lease_produce: append messages if the last entry id is the expected one; each sequence number of a client is
-- used only once.
--
-- KEYS
--   1    stream
--   2    idempotency marker
--   3    lease producers
--   4    lease producers_seen
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2    expected last entry id ('': any)
--   3    client ('': none)
--   4    strict (1: one used sequence number refuses the whole call)
--   5    max length (0: no limit)
--   6    time after which an inactive client is removed (ms)
--   7..  per message: sequence number, d, n
-- RETURNS
--   for each message: its entry id, or '' if its sequence number was used before
-- @include now_ms
-- @include add_entry
-- @include check_max_len
local cached_reply = redis.call('LRANGE', KEYS[2], 0, -1)
if #cached_reply > 0 then return cached_reply end
if ARGV[2] ~= '' then
  local last_id = '0-0'
  if redis.call('EXISTS', KEYS[1]) == 1 then
    local info = redis.call('XINFO', 'STREAM', KEYS[1])
    for i = 1, #info, 2 do
      if info[i] == 'last-generated-id' then last_id = info[i + 1] end
    end
  end
  if last_id ~= ARGV[2] then return redis.error_reply('CHASQUILEASE tail_moved ' .. last_id) end
end
-- Sequence numbers are compared as text, because Lua numbers are not exact above 2^53.
local function is_greater(a, b) return #a > #b or (#a == #b and a > b) end
local client, now, is_new, new_count = ARGV[3], now_ms(), {}, 0
local last_seq = client ~= '' and redis.call('HGET', KEYS[3], client) or ''
for i = 7, #ARGV, 3 do
  local new = client == '' or is_greater(ARGV[i], last_seq)
  if not new and ARGV[4] == '1' then return redis.error_reply('CHASQUILEASE sequence_conflict ' .. last_seq) end
  if new then last_seq, new_count = ARGV[i], new_count + 1 end
  is_new[#is_new + 1] = new
end
local queue_full = check_max_len(KEYS[1], tonumber(ARGV[5]), new_count)
if queue_full then return queue_full end
local reply = {}
for j = 1, #is_new do
  local i = j * 3 + 4
  reply[j] = is_new[j] and add_entry(KEYS[1], ARGV[i + 1], ARGV[i + 2]) or ''
  redis.call('RPUSH', KEYS[2], reply[j])
end
if #reply > 0 then redis.call('PEXPIRE', KEYS[2], ARGV[1]) end
if client ~= '' and new_count > 0 then
  redis.call('HSET', KEYS[3], client, last_seq)
  redis.call('ZADD', KEYS[4], now, client)
  local cutoff = string.format('%.0f', now - tonumber(ARGV[6]))
  for _, inactive in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', cutoff, 'LIMIT', 0, 10)) do
    redis.call('ZREM', KEYS[4], inactive)
    redis.call('HDEL', KEYS[3], inactive)
  end
end
return reply
