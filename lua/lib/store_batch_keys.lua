-- Store the keys of the last `count` of the given jobs as one MessagePack array, under the index of its first job.
-- values has one MessagePack value per given job, sizes the size of each (16 bits, big-endian).
local function store_batch_keys(keys, index, count, values, sizes)
  local start = 1
  for i = 1, #sizes / 2 - count do start = start + struct.unpack('>I2', sizes, 2 * i - 1) end
  redis.call('HSET', keys, string.format('%.0f', index), struct.pack('>BI2', 220, count) .. string.sub(values, start))
end
