-- repeat_enqueue_due: put the due fires of a repeat on the queue and set its next one; once for each score, whoever asks.
-- KEYS  1 stream  2 delayed  3 repeat  4 spec
-- ARGV  1 repeat key  2 score it was due at (ms)  3 next fire (ms, 0: none)  4 limit (0: none)  5 end (ms, 0: none)  6 now (ms)  7.. per fire: fire at (ms), member
-- returns {fired, removed}; fired is -1 where someone else fired this score first
-- @include delayed_member
-- @include add_entry
local score = redis.call('ZSCORE', KEYS[3], ARGV[1])
if not score or tonumber(score) ~= tonumber(ARGV[2]) then return {-1, 0} end
local limit, fired = tonumber(ARGV[4]), tonumber(redis.call('HGET', KEYS[4], 'fired')) or 0
local now_fired = 0
for i = 7, #ARGV, 2 do
  if limit > 0 and fired >= limit then break end
  if tonumber(ARGV[i]) <= tonumber(ARGV[6]) then
    push(KEYS[1], split_member(ARGV[i + 1]))
  else
    redis.call('ZADD', KEYS[2], ARGV[i], ARGV[i + 1])
  end
  fired = fired + 1
  now_fired = now_fired + 1
end
if now_fired > 0 then redis.call('HSET', KEYS[4], 'fired', fired) end
local next_fire, last = tonumber(ARGV[3]), tonumber(ARGV[5])
if (limit > 0 and fired >= limit) or next_fire <= 0 or (last > 0 and next_fire > last) then
  redis.call('ZREM', KEYS[3], ARGV[1])
  redis.call('DEL', KEYS[4])
  return {now_fired, 1}
end
redis.call('ZADD', KEYS[3], ARGV[3], ARGV[1])
return {now_fired, 0}
