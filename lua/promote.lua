-- promote: move due jobs from the delayed set to the stream. A malformed member becomes a dead letter.
--
-- KEYS
--   1    delayed
--   2    stream
--   3    dlq
-- ARGV
--   1    maximum number of jobs; a call also ends after about 4 MiB
-- RETURNS
--   {promoted, remaining in the delayed set, lateness of the first due job (ms), next due time (ms, 0: none), now (ms),
--   dead-lettered, envelopes of the promoted jobs, truncated after the job id}
-- @include check_writes
-- @include split_delayed_member
-- @include add_entry
-- @include now_ms
local MAX_BYTES = 4 * 1024 * 1024
-- Truncate an envelope after its job id. The caller needs only the ids, to emit `waiting` events. This works if the
-- envelope is an array and its first element is a string.
local function truncate_after_id(d)
  local array, kind, high, low = string.byte(d, 1, 4)
  if not low or array < 0x93 or array > 0x95 then return d end
  if kind >= 0xA0 and kind <= 0xBF then return string.sub(d, 1, 2 + kind - 0xA0) end
  if kind == 0xD9 then return string.sub(d, 1, 3 + high) end
  if kind == 0xDA then return string.sub(d, 1, 4 + high * 256 + low) end
  return d
end
check_writes(KEYS[1], 'zset', 'ZREMRANGEBYRANK', 'ZRANGE', 'ZCARD')
check_writes(KEYS[2], 'stream', 'XADD')
check_writes(KEYS[3], 'stream', 'XADD')
local now = now_ms()
local promoted, dead_lettered, late, bytes, remaining, page = {}, 0, nil, 0, tonumber(ARGV[1]), 4
while remaining > 0 and bytes < MAX_BYTES do
  -- In pages, because members can be large: a page is about as large as what may still be moved.
  page = math.min(page, remaining)
  local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'WITHSCORES', 'LIMIT', 0, page)
  local count = #due / 2
  if count == 0 then break end
  late = late or math.max(0, now - math.max(0, math.floor(tonumber(due[2]))))
  for i = 1, #due, 2 do
    local d, n = split_delayed_member(due[i])
    if d then
      add_entry(KEYS[2], d, n)
      promoted[#promoted + 1] = truncate_after_id(d)
    else
      redis.call('XADD', KEYS[3], '*', 'd', due[i], 'source_id', '0-0', 'reason', 'malformed',
        'detail', 'delayed member shorter than its name', 'failed_at', now)
      dead_lettered = dead_lettered + 1
    end
    bytes = bytes + #due[i]
  end
  -- The due members are the first ones of the sorted set, because a script runs atomically.
  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, count - 1)
  remaining = remaining - count
  local average = bytes / (#promoted + dead_lettered)
  page = math.max(1, math.min(256, math.floor((MAX_BYTES - bytes) / average)))
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local next_due = first[2] and math.floor(math.min(tonumber(first[2]), 2 ^ 53)) or 0
return {#promoted, redis.call('ZCARD', KEYS[1]), late or 0, next_due, now, dead_lettered, promoted}
