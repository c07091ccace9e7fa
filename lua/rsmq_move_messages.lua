-- rsmq_move_messages: move visible RSMQ messages to a stream, each exactly once even if other clients receive
-- or move them.
--
-- KEYS
--   1    zset
--   2    hash
--   3    stream
-- ARGV
--   1    max length of the stream (0: no limit)
--   2..  per message: id, d ('': the message has no body and is dropped), n
-- RETURNS
--   a string with one character per message: '1' moved or dropped, '0' deleted or hidden since it was read
-- @include check_writes
-- @include now_ms
-- @include add_entry
-- @include check_max_len
-- @include rsmq_remove
local now, flags, new_jobs = now_ms(), {}, 0
check_writes(KEYS[1], 'zset', 'ZREM')
check_writes(KEYS[2], 'hash', 'HDEL', 'HINCRBY')
check_writes(KEYS[3], 'stream', 'XADD')
for i = 2, #ARGV, 3 do
  local score = redis.call('ZSCORE', KEYS[1], ARGV[i])
  local visible = score and tonumber(score) <= now
  flags[#flags + 1] = visible and '1' or '0'
  if visible and ARGV[i + 1] ~= '' then new_jobs = new_jobs + 1 end
end
local queue_full = check_max_len(KEYS[3], tonumber(ARGV[1]), new_jobs)
if queue_full then return queue_full end
for j = 1, #flags do
  local i = j * 3 - 1
  if flags[j] == '1' then
    rsmq_remove(KEYS[1], KEYS[2], ARGV[i])
    if ARGV[i + 1] ~= '' then add_entry(KEYS[3], ARGV[i + 1], ARGV[i + 2]) end
  end
end
if new_jobs > 0 then redis.pcall('HINCRBY', KEYS[2], 'totalrecv', new_jobs) end
return table.concat(flags)
