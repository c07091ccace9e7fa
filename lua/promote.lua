-- promote: move due jobs from the delayed set to the stream. A malformed member becomes a dead letter.
--
-- KEYS
--   1    delayed
--   2    stream
--   3    dlq
-- ARGV
--   1    maximum number of jobs
-- RETURNS
--   {promoted, remaining in the delayed set, lateness of the first due job (ms), next due time (ms, 0: none), now (ms),
--   dead-lettered, envelopes of the promoted jobs (truncated after the job id if the id is short)}
-- @include split_delayed_member
-- @include add_entry
-- @include now_ms
-- Truncate an envelope after its job id. The caller needs only the ids, to emit `waiting` events. This works if the
-- envelope is an array of four or five elements and its first element is a string of at most 31 bytes.
local function truncate_after_id(d)
  local kind, size = string.byte(d, 1, 2)
  if (kind == 0x94 or kind == 0x95) and size and size >= 0xA0 and size <= 0xBF then
    return string.sub(d, 1, size - 0x9E)
  end
  return d
end
-- Fail on a key of the wrong type before the first write.
redis.call('XLEN', KEYS[2])
redis.call('XLEN', KEYS[3])
local now = now_ms()
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'WITHSCORES', 'LIMIT', 0, ARGV[1])
local promoted, dead_lettered, late = {}, 0, 0
if #due > 0 then late = math.max(0, now - math.max(0, math.floor(tonumber(due[2])))) end
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
end
-- The due members are the first ones of the sorted set, because a script runs atomically.
if #due > 0 then redis.call('ZREMRANGEBYRANK', KEYS[1], 0, #due / 2 - 1) end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local next_due = first[2] and math.floor(math.min(tonumber(first[2]), 2 ^ 53)) or 0
return {#promoted, redis.call('ZCARD', KEYS[1]), late, next_due, now, dead_lettered, promoted}
