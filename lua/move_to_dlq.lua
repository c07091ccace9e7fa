-- move_to_dlq: acknowledge failed entries and write their dead letters, each exactly once.
--
-- KEYS
--   1    stream
--   2    dlq
--   3..  dead bitmaps
-- ARGV
--   1    group
--   2    maximum number of dead letters (0: no limit)
--   3    TTL of the dead bitmaps (ms)
--   4..  per entry: entry id, position of its dead bitmap in KEYS (0: none), bit, number of fields and values,
--        fields and values
-- RETURNS
--   for each entry: 1 moved, 0 another consumer acknowledged it first
-- @include ack_delete
redis.call('XLEN', KEYS[2]) -- Fail on a key of the wrong type before the first write.
local ids, positions = {}, {}
local i = 4
while i <= #ARGV do
  ids[#ids + 1] = ARGV[i]
  positions[#positions + 1] = i
  i = i + 4 + tonumber(ARGV[i + 3])
end
local deleted, reply = ack_delete(KEYS[1], ARGV[1], ids), {}
for j, position in ipairs(positions) do
  reply[j] = deleted[j] and 1 or 0
  if deleted[j] then
    local command = {'XADD', KEYS[2]}
    if ARGV[2] ~= '0' then
      command[3], command[4], command[5] = 'MAXLEN', '~', ARGV[2]
    end
    command[#command + 1] = '*'
    for field = position + 4, position + 3 + tonumber(ARGV[position + 3]) do command[#command + 1] = ARGV[field] end
    redis.call(unpack(command))
    if ARGV[position + 1] ~= '0' then
      local bitmap = KEYS[tonumber(ARGV[position + 1])]
      redis.call('SETBIT', bitmap, ARGV[position + 2], 1)
      redis.call('PEXPIRE', bitmap, ARGV[3])
    end
  end
end
return reply
