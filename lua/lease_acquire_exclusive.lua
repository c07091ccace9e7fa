-- lease_acquire_exclusive: lease entries in exclusive mode. An ordered queue is leased in order and to one
-- session of a consumer at a time.
--
-- KEYS
--   1    idempotency marker
--   2    stream
--   3    delayed
--   4    dlq
--   5    lease deadlines
--   6    lease redeliver_at
--   7    lease owners
--   8    lease blocked
--   9    lease max_deliveries
--   10   lease fencing_token
--   11   lease config
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2    group
--   3    consumer
--   4    session
--   5    maximum number of entries
--   6    lease duration (ms)
--   7    maximum number of deliveries
--   8    action after the last delivery (dead_letter, block, block_and_dead_letter)
--   9    ordered (1, 0)
--   10   maximum number of active leases (0: no limit)
--   11   maximum number of unacknowledged entries (0: no limit)
--   12   config
--   13   claim until (ms): the latest time at which leases may expire; a later one is a jump of the clock
-- RETURNS
--   {status, now (ms), ms until an entry may become available (-1: unknown), due time of the first delayed job
--   (ms, 0: none), last entry id of the stream, fencing token, entries};
--   status: 0 ok, 1 too many active leases, 2 too many unacknowledged entries;
--   per entry {id, fields, idle (ms), previous deliveries}
-- @include check_writes
-- @include lease_check_acquire
-- @include lease_check_exclusive
-- @include now_ms
-- @include entry_before
-- @include cached_reply
-- @include store_reply
-- @include lease_is_held
-- @include lease_recall
-- @include lease_require_exclusive
-- @include lease_candidates
-- @include lease_block_entry
-- @include lease_due_in
-- @include lease_reply
local stream, deadlines, redeliver_at, owners, blocked = KEYS[2], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local group, consumer, session, count = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local ordered, max_in_flight, max_unacknowledged = ARGV[9] == '1', tonumber(ARGV[10]), tonumber(ARGV[11])
local granted = cached_reply(KEYS[1])
if granted then
  local recalled = lease_recall(stream, group, owners, consumer, granted[2], granted[3])
  return lease_reply(stream, KEYS[3], 0, granted[1], -1, granted[2], recalled)
end
lease_check_exclusive(KEYS)
local now, problem = now_ms(), lease_require_exclusive(stream, group, KEYS[11], ARGV[12])
if problem then return problem end
local expired_at = now <= tonumber(ARGV[13]) and now or 0 -- Leases with this deadline or an earlier one have expired.
local now_text, expired_text = string.format('%.0f', now), string.format('%.0f', expired_at)
local entries, ids, status, stopped = {}, {}, 0, false
local last = redis.call('ZREVRANGE', deadlines, 0, 0, 'WITHSCORES')
-- All leases of an ordered queue belong to one session of one consumer, so checking one of them is enough.
local other_session = ordered and last[1]
  and string.match(redis.call('HGET', owners, last[1]) or '', '^%d+:(.*)$') ~= session .. ':' .. consumer
if other_session and tonumber(last[2]) > expired_at then
  return lease_reply(stream, KEYS[3], 0, now, tonumber(last[2]) - now, 0, {})
end
if max_in_flight > 0 then
  count = math.min(count, max_in_flight - redis.call('ZCOUNT', deadlines, '(' .. expired_text, '+inf'))
  if count < 1 then status, stopped = 1, true end
end
local candidates = {}
if not stopped then
  candidates, stopped = lease_candidates(
    stream, group, deadlines, redeliver_at, blocked, expired_text, now_text, count, ordered)
end
for _, candidate in ipairs(candidates) do
  local id, deliveries = candidate[1], candidate[2]
  redis.call('ZREM', deadlines, id)
  redis.call('ZREM', redeliver_at, id)
  redis.call('HDEL', owners, id)
  if deliveries >= tonumber(redis.call('HGET', KEYS[9], id) or ARGV[7]) and ARGV[8] ~= 'dead_letter' then
    lease_block_entry(stream, KEYS[4], blocked, id, deliveries, now_text, ARGV[8] == 'block_and_dead_letter')
    stopped = stopped or ordered
    if ordered then break end
  else
    local claimed = redis.call('XCLAIM', stream, group, consumer, 0, id)[1]
    if claimed and claimed[2] then
      entries[#entries + 1] = {id, claimed[2], 0, deliveries}
    else
      redis.call('XACK', stream, group, id) -- The entry was deleted while it was pending.
    end
  end
end
local capacity = count - #entries
if not stopped and capacity > 0 then
  if max_unacknowledged > 0 then
    capacity = math.min(capacity, max_unacknowledged - redis.call('XPENDING', stream, group)[1])
  end
  if capacity > 0 then
    local streams = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', capacity, 'STREAMS', stream, '>')
    for _, entry in ipairs(streams and streams[1] and streams[1][2] or {}) do
      entries[#entries + 1] = {entry[1], entry[2], 0, 0}
    end
  elseif #entries == 0 then
    status = 2
  end
end
local fencing_token = 0
if #entries > 0 then
  fencing_token = redis.call('INCR', KEYS[10])
  -- The expired leases of the other session end: it must not acknowledge or extend entries behind those of this session.
  if other_session then redis.call('UNLINK', deadlines, owners) end
end
for _, entry in ipairs(entries) do
  ids[#ids + 1], ids[#ids + 2] = entry[1], entry[4]
  redis.call('ZADD', deadlines, string.format('%.0f', now + tonumber(ARGV[6])), entry[1])
  redis.call('HSET', owners, entry[1], fencing_token .. ':' .. session .. ':' .. consumer)
end
if #entries > 0 then store_reply(KEYS[1], ARGV[1], {now, fencing_token, ids}) end
local due_in = lease_due_in(deadlines, redeliver_at, now)
return lease_reply(stream, KEYS[3], status, now, due_in, fencing_token, entries)
