#!lua flags=allow-oom
-- ack_with_results: acknowledge finished entries, set the batch bit and store the result of each entry that
-- this call acknowledged.
--
-- KEYS
--   1    stream
--   2..  batch, done bitmap and dead bitmap of each batch part; result keys of jobs without a batch; result buckets
-- ARGV
--   1    group
--   2..  per entry: entry id, position of its batch in KEYS (0: none), part with creation time, index, dead (1, 0),
--        position of its result key or bucket in KEYS (0: none), result, TTL of the result (s; not used in a batch)
-- RETURNS
--   for each entry: 1 acknowledged, 0 another consumer acknowledged it first
-- @include check_writes
-- @include check_ack_delete
-- @include check_batch_bits
-- @include set_batch_bit
-- @include ack_delete
local ids, first_result, first_bucket = {}, nil, nil
for i = 2, #ARGV, 8 do
  ids[#ids + 1] = ARGV[i]
  check_batch_bits(ARGV[i + 1])
  local key = KEYS[tonumber(ARGV[i + 5])]
  if ARGV[i + 1] == '0' then first_result = first_result or key else first_bucket = first_bucket or key end
end
if first_result then check_writes(first_result, nil, 'SET') end
if first_bucket then check_writes(first_bucket, nil, 'HSET', 'PEXPIREAT') end
check_ack_delete(KEYS[1])
local deleted, reply = ack_delete(KEYS[1], ARGV[1], ids), {}
local buckets, batch_of = {}, {}
for j = 1, #ids do
  local i = j * 8 - 6
  reply[j] = deleted[j] and 1 or 0
  if deleted[j] then
    local in_batch = set_batch_bit(ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4] == '1')
    local position = tonumber(ARGV[i + 5])
    -- A key of the wrong type loses its results, but not the acknowledgements.
    if position > 0 and ARGV[i + 1] == '0' then
      redis.pcall('SET', KEYS[position], ARGV[i + 6], 'EX', ARGV[i + 7])
    elseif position > 0 and in_batch then
      local command = buckets[position]
      if not command then
        command = {'HSET', KEYS[position]}
        buckets[position], batch_of[position] = command, KEYS[tonumber(ARGV[i + 1])]
      end
      command[#command + 1] = ARGV[i + 3] % 128
      command[#command + 1] = ARGV[i + 6]
    end
  end
end
for position, command in pairs(buckets) do
  redis.pcall(unpack(command))
  local batch = batch_of[position]
  local expires_at = redis.pcall('PEXPIRETIME', batch)
  if type(expires_at) == 'number' and expires_at > 0 then
    -- Until the batch is finalized, every chunk that is sent postpones its expiry, but not that of the buckets.
    if not redis.pcall('HGET', batch, 'total') then expires_at = expires_at + 86400000 end
    redis.pcall('PEXPIREAT', KEYS[position], expires_at)
  end
end
return reply
