-- promote: move due jobs to the stream; a member that cannot be read becomes a letter and stops nobody.
-- KEYS  1 delayed  2 stream  3 dlq
-- ARGV  1 at most
-- returns {moved, left, how late the first due job is (ms), next due (ms, 0: none), now (ms), buried, envelopes, each cut behind its id where that is short}
-- @include delayed_member
-- @include add_entry
-- @include clock
-- Whoever hears of the move wants the ids. An array of four or five that begins with a string of up to 31 bytes.
local function up_to_id(d)
  local kind, size = string.byte(d, 1, 2)
  if (kind == 0x94 or kind == 0x95) and size and size >= 0xA0 and size <= 0xBF then
    return string.sub(d, 1, size - 0x9E)
  end
  return d
end
-- Keys of another type are refused before anything is moved.
redis.call('XLEN', KEYS[2])
redis.call('XLEN', KEYS[3])
local now = now_ms()
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'WITHSCORES', 'LIMIT', 0, ARGV[1])
local moved, buried, late = {}, 0, 0
if #due > 0 then late = math.max(0, now - math.max(0, math.floor(tonumber(due[2])))) end
for i = 1, #due, 2 do
  local d, n = split_member(due[i])
  if d then
    push(KEYS[2], d, n)
    moved[#moved + 1] = up_to_id(d)
  else
    redis.call('XADD', KEYS[3], '*', 'd', due[i], 'source_id', '0-0', 'reason', 'malformed',
      'detail', 'delayed member shorter than its name', 'failed_at', now)
    buried = buried + 1
  end
end
-- They were the first of the set, and nothing came between.
if #due > 0 then redis.call('ZREMRANGEBYRANK', KEYS[1], 0, #due / 2 - 1) end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local next_due = first[2] and math.floor(math.min(tonumber(first[2]), 2 ^ 53)) or 0
return {#moved, redis.call('ZCARD', KEYS[1]), late, next_due, now, buried, moved}
