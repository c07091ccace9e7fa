-- rsmq_move_messages: move visible RSMQ messages to a stream, each exactly once, whoever else receives or moves them.
-- KEYS  1 zset  2 hash  3 stream
-- ARGV  1 max length of the stream (0: none)  2.. per message: id, d ('': it has no body, drop it), n
-- returns a string with one sign a message: 1 moved or dropped, 0 gone or hidden by now
-- @include clock
-- @include add_entry
-- @include check_max_len
-- @include rsmq_remove
local now, signs, jobs = now_ms(), {}, 0
redis.call('XLEN', KEYS[3]) -- refuses a key of another type before anything is taken
for i = 2, #ARGV, 3 do
  local score = redis.call('ZSCORE', KEYS[1], ARGV[i])
  local mine = score and tonumber(score) <= now
  signs[#signs + 1] = mine and '1' or '0'
  if mine and ARGV[i + 1] ~= '' then jobs = jobs + 1 end
end
local full = room(KEYS[3], tonumber(ARGV[1]), jobs)
if full then return full end
for j = 1, #signs do
  local i = j * 3 - 1
  if signs[j] == '1' then
    rsmq_remove(KEYS[1], KEYS[2], ARGV[i])
    if ARGV[i + 1] ~= '' then push(KEYS[3], ARGV[i + 1], ARGV[i + 2]) end
  end
end
if jobs > 0 then redis.call('HINCRBY', KEYS[2], 'totalrecv', jobs) end
return table.concat(signs)
