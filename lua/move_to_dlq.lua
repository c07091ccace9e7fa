-- move_to_dlq: acknowledge failed entries and write their dead letters, each exactly once.
--
-- KEYS
--   1    stream
--   2    dlq
--   3..  batch, done bitmap and dead bitmap of each batch part
-- ARGV
--   1    group
--   2    consumer
--   3    maximum number of dead letters (0: no limit)
--   4..  per entry: entry id, position of its batch in KEYS (0: none), part with creation time, index, number of fields and values,
--        fields and values
-- RETURNS
--   for each entry: 1 moved, 0 another consumer claimed or acknowledged it first
-- @include check_writes
-- @include check_ack_delete
-- @include check_batch_bits
-- @include set_batch_bit
-- @include ack_delete
-- @include ack_if_owner
local ids, positions, i = {}, {}, 4
while i <= #ARGV do
  ids[#ids + 1] = ARGV[i]
  positions[#positions + 1] = i
  check_batch_bits(ARGV[i + 1])
  i = i + 5 + tonumber(ARGV[i + 4])
end
check_writes(KEYS[2], 'stream', 'XADD')
check_ack_delete(KEYS[1])
local reply = ack_if_owner(KEYS[1], ARGV[1], ARGV[2], ids)
for j, position in ipairs(positions) do
  if reply[j] == 1 then
    local command = {'XADD', KEYS[2]}
    if ARGV[3] ~= '0' then
      command[3], command[4], command[5] = 'MAXLEN', '~', ARGV[3]
    end
    command[#command + 1] = '*'
    for field = position + 5, position + 4 + tonumber(ARGV[position + 4]) do command[#command + 1] = ARGV[field] end
    redis.call(unpack(command))
    set_batch_bit(ARGV[position + 1], ARGV[position + 2], ARGV[position + 3], true)
  end
end
return reply
