#!lua flags=allow-oom
-- ack_with_results: acknowledge finished entries, set the batch bit and store the result of each entry that
-- this call acknowledged.
--
-- KEYS
--   1    stream
--   2..  batch bitmaps and result keys
-- ARGV
--   1    group
--   2    TTL of the bitmaps (ms)
--   3..  per entry: entry id, position of its bitmap in KEYS (0: none), position of the opposite bitmap, bit,
--        position of its result key in KEYS (0: none), result, TTL of the result (s)
-- RETURNS
--   for each entry: 1 acknowledged, 0 another consumer acknowledged it first
-- @include ack_delete
local ids = {}
for i = 3, #ARGV, 7 do ids[#ids + 1] = ARGV[i] end
local deleted, reply, changed_bitmaps = ack_delete(KEYS[1], ARGV[1], ids), {}, {}
for j = 1, #ids do
  local i = j * 7 - 4
  reply[j] = deleted[j] and 1 or 0
  if deleted[j] then
    if ARGV[i + 1] ~= '0' then
      local bitmap, opposite = KEYS[tonumber(ARGV[i + 1])], KEYS[tonumber(ARGV[i + 2])]
      redis.call('SETBIT', bitmap, ARGV[i + 3], 1)
      changed_bitmaps[bitmap] = true
      -- A replay by ChasquiMQ does not clear the dead bit. Clear it here, so that the job is not counted twice.
      if redis.call('GETBIT', opposite, ARGV[i + 3]) == 1 then redis.call('SETBIT', opposite, ARGV[i + 3], 0) end
    end
    -- If the server is out of memory the result is lost, but the acknowledgement is not.
    if ARGV[i + 4] ~= '0' then
      redis.pcall('SET', KEYS[tonumber(ARGV[i + 4])], ARGV[i + 5], 'EX', ARGV[i + 6])
    end
  end
end
for bitmap in pairs(changed_bitmaps) do redis.call('PEXPIRE', bitmap, ARGV[2]) end
return reply
