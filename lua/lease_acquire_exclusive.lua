-- lease_acquire_exclusive: lease entries in exclusive mode. An ordered queue is leased in order and to one
-- consumer at a time.
--
-- KEYS
--   1    stream
--   2    delayed
--   3    dlq
--   4    lease deadlines
--   5    lease redeliver_at
--   6    lease owners
--   7    lease blocked
--   8    lease max_deliveries
--   9    lease fencing_token
--   10   lease config
-- ARGV
--   1    group
--   2    consumer
--   3    maximum number of entries
--   4    lease duration (ms)
--   5    maximum number of deliveries
--   6    action after the last delivery (dead_letter, block, block_and_dead_letter)
--   7    ordered (1, 0)
--   8    maximum number of active leases (0: no limit)
--   9    maximum number of unacknowledged entries (0: no limit)
--   10   config
-- RETURNS
--   {status, now (ms), ms until an entry may become available (-1: unknown), due time of the first delayed job
--   (ms, 0: none), last entry id of the stream, fencing token, entries};
--   status: 0 ok, 1 too many active leases, 2 too many unacknowledged entries;
--   per entry {id, fields, idle (ms), previous deliveries}
-- @include now_ms
-- @include entry_before
-- @include lease_require_exclusive
-- @include lease_candidates
-- @include lease_block_entry
-- @include lease_reply
local stream, deadlines, redeliver_at, owners, blocked = KEYS[1], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local group, consumer, count = ARGV[1], ARGV[2], tonumber(ARGV[3])
local ordered, max_in_flight, max_unacknowledged = ARGV[7] == '1', tonumber(ARGV[8]), tonumber(ARGV[9])
local problem = lease_require_exclusive(stream, group, KEYS[10], ARGV[10])
if problem then return problem end
local now = now_ms()
local now_text, entries, status, stopped = string.format('%.0f', now), {}, 0, false
local last = redis.call('ZREVRANGE', deadlines, 0, 0, 'WITHSCORES')
if ordered and last[1] and tonumber(last[2]) > now then
  -- All active leases of an ordered queue belong to one consumer, so checking one of them is enough.
  local holder = string.match(redis.call('HGET', owners, last[1]) or '', '^%d+:(.*)$')
  if holder ~= consumer then
    return lease_reply(stream, KEYS[2], 0, now, tonumber(last[2]) - now, 0, {})
  end
end
if max_in_flight > 0 then
  count = math.min(count, max_in_flight - redis.call('ZCOUNT', deadlines, '(' .. now_text, '+inf'))
  if count < 1 then status, stopped = 1, true end
end
local ids, states = {}, {}
if not stopped then ids, states = lease_candidates(deadlines, redeliver_at, blocked, now_text, count, ordered) end
for _, id in ipairs(ids) do
  if #entries >= count then break end
  if states[id] ~= 'available' then
    stopped = true
    break
  end
  local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
  local deliveries = pending and pending[4] or 0
  local allowed = tonumber(redis.call('HGET', KEYS[8], id) or ARGV[5])
  redis.call('ZREM', deadlines, id)
  redis.call('ZREM', redeliver_at, id)
  redis.call('HDEL', owners, id)
  if deliveries >= allowed and ARGV[6] ~= 'dead_letter' then
    lease_block_entry(stream, KEYS[3], blocked, id, deliveries, now_text, ARGV[6] == 'block_and_dead_letter')
    if ordered then
      stopped = true
      break
    end
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
if #entries > 0 then fencing_token = redis.call('INCR', KEYS[9]) end
for _, entry in ipairs(entries) do
  redis.call('ZADD', deadlines, string.format('%.0f', now + tonumber(ARGV[4])), entry[1])
  redis.call('HSET', owners, entry[1], fencing_token .. ':' .. consumer)
end
local due_in = -1
for _, key in ipairs({deadlines, redeliver_at}) do
  local first = redis.call('ZRANGEBYSCORE', key, '(' .. now_text, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if first[2] and (due_in < 0 or tonumber(first[2]) - now < due_in) then due_in = tonumber(first[2]) - now end
end
return lease_reply(stream, KEYS[2], status, now, due_in, fencing_token, entries)
