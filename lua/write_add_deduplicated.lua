-- write_add_deduplicated: put the jobs on the queue whose row was not sent before, numbered as they come (delivery=dedup).
-- KEYS  1 stream  2 delayed  3 batch  4 ids
-- ARGV  1 delay (ms)  2 timed (0, 1)  3 life (ms)  4 created (ms)  5 source  6 id before its number ('': rows bring their id)  7.. per row: row id, item before the job id, item behind it
-- returns how many were new; -1 the batch is complete
-- @include add_entry
-- @include delayed_member
-- @include clock
-- @include add_staged_item
if redis.call('HEXISTS', KEYS[3], 'total') == 1 then return -1 end
local function pack_text(text)
  if #text < 32 then return string.char(160 + #text) .. text end
  if #text < 256 then return string.char(217, #text) .. text end
  return string.char(218, math.floor(#text / 256), #text % 256) .. text
end
local now, delay, timed = now_ms(), tonumber(ARGV[1]), ARGV[2] == '1'
local sent = tonumber(redis.call('HGET', KEYS[3], 'sent:0') or '0')
local first = sent
for i = 7, #ARGV, 3 do
  if redis.call('SADD', KEYS[4], ARGV[i]) == 1 then
    local id = ARGV[6] == '' and '' or pack_text(ARGV[6] .. sent)
    put(KEYS[1], KEYS[2], ARGV[i + 1] .. id .. ARGV[i + 2], timed, delay, now)
    sent = sent + 1
  end
end
redis.call('HSET', KEYS[3], 'sent:0', sent)
redis.call('HSETNX', KEYS[3], 'created', ARGV[4])
redis.call('HSETNX', KEYS[3], 'source', ARGV[5])
redis.call('PEXPIRE', KEYS[3], ARGV[3])
redis.call('PEXPIRE', KEYS[4], ARGV[3])
return sent - first
