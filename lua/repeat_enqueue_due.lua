-- repeat_enqueue_due: enqueue the due fires of a repeatable job and set its next fire, once per score for all
-- schedulers.
--
-- KEYS
--   1    stream
--   2    delayed
--   3    repeat
--   4    repeat spec
-- ARGV
--   1    repeat key
--   2    score at which it was due (ms)
--   3    next fire (ms, 0: none)
--   4    limit (0: none)
--   5    end (ms, 0: none)
--   6    now (ms)
--   7..  per fire: fire at (ms), delayed member
-- RETURNS
--   {fired, removed}; fired is -1 if another scheduler enqueued this score first
-- @include check_writes
-- @include split_delayed_member
-- @include add_entry
-- @include add_delayed
local score = redis.call('ZSCORE', KEYS[3], ARGV[1])
if not score or tonumber(score) ~= tonumber(ARGV[2]) then return {-1, 0} end
local limit, total_fired = tonumber(ARGV[4]), tonumber(redis.call('HGET', KEYS[4], 'fired')) or 0
local fired = 0
check_writes(KEYS[1], 'stream', 'XADD')
check_writes(KEYS[2], 'zset', 'ZADD')
check_writes(KEYS[3], nil, 'ZADD', 'ZREM')
check_writes(KEYS[4], nil, 'HSET', 'DEL')
for i = 7, #ARGV, 2 do
  if limit > 0 and total_fired >= limit then break end
  if tonumber(ARGV[i]) <= tonumber(ARGV[6]) then
    add_entry(KEYS[1], split_delayed_member(ARGV[i + 1]))
  else
    add_delayed(KEYS[2], ARGV[i], ARGV[i + 1])
  end
  total_fired = total_fired + 1
  fired = fired + 1
end
if fired > 0 then redis.call('HSET', KEYS[4], 'fired', total_fired) end
local next_fire, end_ms = tonumber(ARGV[3]), tonumber(ARGV[5])
if (limit > 0 and total_fired >= limit) or next_fire <= 0 or (end_ms > 0 and next_fire > end_ms) then
  redis.call('ZREM', KEYS[3], ARGV[1])
  redis.call('DEL', KEYS[4])
  return {fired, 1}
end
redis.call('ZADD', KEYS[3], ARGV[3], ARGV[1])
return {fired, 0}
