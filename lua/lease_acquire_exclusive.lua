-- lease_acquire_exclusive: lease entries of a queue that leases have for themselves; if ordered, strictly in order and to one consumer at a time.
-- KEYS  1 stream  2 delayed  3 dlq  4 held  5 later  6 owners  7 blocked  8 grants  9 fence  10 config
-- ARGV  1 group  2 consumer  3 at most  4 leased for (ms)  5 deliveries at most  6 poison (skip, block, block_and_dlq)  7 ordered (1, 0)  8 in flight at most (0: any)  9 pinned at most (0: any)  10 config
-- returns {status, now (ms), next due in (ms, -1: unknown), first delayed job due at (ms, 0: none), tail, fence, entries}; status 0 ok, 1 too many in flight, 2 too many pinned; per entry {id, fields, idle, deliveries before}
-- @include clock
-- @include entry_order
-- @include lease_require_exclusive
-- @include lease_candidates
-- @include lease_block_entry
-- @include lease_reply
local stream, held, later, owners, blocked = KEYS[1], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local group, consumer, count = ARGV[1], ARGV[2], tonumber(ARGV[3])
local ordered, most, most_pinned = ARGV[7] == '1', tonumber(ARGV[8]), tonumber(ARGV[9])
local problem = lease_require_exclusive(stream, group, KEYS[10], ARGV[10])
if problem then return problem end
local now = now_ms()
local now_text, entries, status, halted = string.format('%.0f', now), {}, 0, false
local last = redis.call('ZREVRANGE', held, 0, 0, 'WITHSCORES')
if ordered and last[1] and tonumber(last[2]) > now then
  -- All live leases of an ordered queue have one holder, so one of them tells who it is.
  local holder = string.match(redis.call('HGET', owners, last[1]) or '', '^%d+:(.*)$')
  if holder ~= consumer then
    return lease_reply(stream, KEYS[2], 0, now, tonumber(last[2]) - now, 0, {})
  end
end
if most > 0 then
  count = math.min(count, most - redis.call('ZCOUNT', held, '(' .. now_text, '+inf'))
  if count < 1 then status, halted = 1, true end
end
local ids, kind = {}, {}
if not halted then ids, kind = lease_candidates(held, later, blocked, now_text, count, ordered) end
for _, id in ipairs(ids) do
  if #entries >= count then break end
  if kind[id] ~= 'free' then
    halted = true
    break
  end
  local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
  local before = pending and pending[4] or 0
  local allowed = tonumber(redis.call('HGET', KEYS[8], id) or ARGV[5])
  redis.call('ZREM', held, id)
  redis.call('ZREM', later, id)
  redis.call('HDEL', owners, id)
  if before >= allowed and ARGV[6] ~= 'skip' then
    lease_block_entry(stream, KEYS[3], blocked, id, before, now_text, ARGV[6] == 'block_and_dlq')
    if ordered then
      halted = true
      break
    end
  else
    local got = redis.call('XCLAIM', stream, group, consumer, 0, id)[1]
    if got and got[2] then
      entries[#entries + 1] = {id, got[2], 0, before}
    else
      redis.call('XACK', stream, group, id) -- deleted while pending: nothing is left to deliver
    end
  end
end
local room = count - #entries
if not halted and room > 0 then
  if most_pinned > 0 then room = math.min(room, most_pinned - redis.call('XPENDING', stream, group)[1]) end
  if room > 0 then
    local read = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', room, 'STREAMS', stream, '>')
    for _, entry in ipairs(read and read[1] and read[1][2] or {}) do
      entries[#entries + 1] = {entry[1], entry[2], 0, 0}
    end
  elseif #entries == 0 then
    status = 2
  end
end
local fence = 0
if #entries > 0 then fence = redis.call('INCR', KEYS[9]) end
for _, entry in ipairs(entries) do
  redis.call('ZADD', held, string.format('%.0f', now + tonumber(ARGV[4])), entry[1])
  redis.call('HSET', owners, entry[1], fence .. ':' .. consumer)
end
local due_in = -1
for _, key in ipairs({held, later}) do
  local first = redis.call('ZRANGEBYSCORE', key, '(' .. now_text, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if first[2] and (due_in < 0 or tonumber(first[2]) - now < due_in) then due_in = tonumber(first[2]) - now end
end
return lease_reply(stream, KEYS[2], status, now, due_in, fence, entries)
