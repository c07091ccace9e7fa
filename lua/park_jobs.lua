-- park_jobs: move entries whose job name is paused to the delayed set, without a due time, each exactly once.
--
-- KEYS
--   1    stream
--   2    delayed
--   3    paused_names
-- ARGV
--   1    group
--   2    consumer
--   3..  per entry: entry id, job name, score in the delayed set, delayed member
-- RETURNS
--   for each entry: 1 moved, 0 another consumer claimed or acknowledged it first, 2 the name is not paused any more and
--   nothing was changed
-- @include check_writes
-- @include check_ack_delete
-- @include ack_delete
-- @include ack_if_owner
-- @include add_delayed
check_writes(KEYS[2], 'zset', 'ZADD')
check_writes(KEYS[3], 'hash', 'HGET')
check_ack_delete(KEYS[1])
local reply, ids, positions = {}, {}, {}
for i = 3, #ARGV, 4 do
  local paused = redis.call('HGET', KEYS[3], ARGV[i + 1]) == 'paused'
  reply[#reply + 1] = paused and 0 or 2
  if paused then
    ids[#ids + 1] = ARGV[i]
    positions[#positions + 1] = #reply
  end
end
for k, acked in ipairs(ack_if_owner(KEYS[1], ARGV[1], ARGV[2], ids)) do
  local j = positions[k]
  reply[j] = acked
  if acked == 1 then add_delayed(KEYS[2], ARGV[j * 4 + 1], ARGV[j * 4 + 2]) end
end
return reply
