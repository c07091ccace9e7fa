-- lease_produce: append messages if the last entry id is the expected one; each sequence number of a client is
-- used only once. A message with an id from its caller deletes the result and the progress of an earlier job with this
-- id.
--
-- KEYS
--   1    idempotency marker
--   2    stream
--   3    lease producers
--   4    lease producers_seen
--   5    cancel requests
--   6..  per message whose caller gave the id: result, progress and progress value
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2    expected last entry id ('': any)
--   3    client ('': none)
--   4    strict (1: one used sequence number refuses the whole call)
--   5    max length (0: no limit)
--   6    time after which an inactive client is removed (ms)
--   7..  per message: sequence number, d, n, its caller gave the id (0, 1)
-- RETURNS
--   for each message: its entry id, or '' if its sequence number was used before
-- @include check_writes
-- @include cached_reply
-- @include store_reply
-- @include now_ms
-- @include add_entry
-- @include check_max_len
-- @include last_entry_id
-- @include supersede_cancel_request
local first_reply = cached_reply(KEYS[1])
if first_reply then return first_reply end
local last_id = ARGV[2] ~= '' and last_entry_id(KEYS[2]) or ''
if last_id ~= ARGV[2] then return redis.error_reply('CHASQUILEASE tail_moved ' .. last_id) end
-- Sequence numbers are compared as text, because Lua numbers are not exact above 2^53.
local function is_greater(a, b) return #a > #b or (#a == #b and a > b) end
local client, now, is_new, new_count = ARGV[3], now_ms(), {}, 0
local last_seq = client ~= '' and redis.call('HGET', KEYS[3], client) or ''
for i = 7, #ARGV, 4 do
  local new = client == '' or is_greater(ARGV[i], last_seq)
  if not new and ARGV[4] == '1' then return redis.error_reply('CHASQUILEASE sequence_conflict ' .. last_seq) end
  if new then last_seq, new_count = ARGV[i], new_count + 1 end
  is_new[#is_new + 1] = new
end
local queue_full = check_max_len(KEYS[2], tonumber(ARGV[5]), new_count)
if queue_full then return queue_full end
check_writes(KEYS[1], nil, 'SET')
check_writes(KEYS[3], 'hash', 'HSET', 'HDEL')
check_writes(KEYS[4], 'zset', 'ZADD', 'ZRANGEBYSCORE', 'ZREM')
local has_requests = KEYS[6] and redis.call('EXISTS', KEYS[5]) == 1
if KEYS[6] then check_writes(KEYS[6], nil, 'UNLINK') end
if has_requests then
  check_writes(KEYS[2], 'stream', 'XADD')
  check_writes(KEYS[5], nil, 'HGET', 'HSET')
end
local reply, key = {}, 5
for j = 1, #is_new do
  local i = j * 4 + 3
  local d, given_id = ARGV[i + 1], ARGV[i + 3] ~= '0'
  if is_new[j] and given_id and has_requests then d = supersede_cancel_request(KEYS[5], d, 1) end
  reply[j] = is_new[j] and add_entry(KEYS[2], d, ARGV[i + 2]) or ''
  if is_new[j] and given_id then redis.call('UNLINK', KEYS[key + 1], KEYS[key + 2], KEYS[key + 3]) end
  if given_id then key = key + 3 end
end
if client ~= '' and new_count > 0 then
  redis.call('HSET', KEYS[3], client, last_seq)
  redis.call('ZADD', KEYS[4], now, client)
  local cutoff = string.format('%.0f', now - tonumber(ARGV[6]))
  for _, inactive in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', cutoff, 'LIMIT', 0, 10)) do
    redis.call('ZREM', KEYS[4], inactive)
    redis.call('HDEL', KEYS[3], inactive)
  end
end
return store_reply(KEYS[1], ARGV[1], reply)
