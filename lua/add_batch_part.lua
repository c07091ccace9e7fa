-- add_batch_part: add the next jobs of one part of a batch to the queue, each index exactly once.
--
-- KEYS
--   1    stream
--   2    delayed
--   3    batch
-- ARGV
--   1    max length (0: no limit)
--   2    part
--   3    index of the first job
--   4    run at (ms, 0: now)
--   5    TTL of the batch (ms)
--   6    created (ms)
--   7    source
--   8..  per job: d and n; if run at is set: delayed member and ''
-- RETURNS
--   the number of jobs added: fewer than given if an earlier call added some of them
-- @include add_entry
-- @include check_max_len
local sent = tonumber(redis.call('HGET', KEYS[3], 'sent:' .. ARGV[2]) or '0')
local first, given = tonumber(ARGV[3]), (#ARGV - 7) / 2
if sent < first then return redis.error_reply('CHASQUIGAP ' .. sent) end
local skip = math.min(sent - first, given)
if skip < given then
  local total = redis.call('HGET', KEYS[3], 'total')
  if total then return redis.error_reply('CHASQUIFINALIZED ' .. total) end
  if ARGV[4] == '0' then
    local queue_full = check_max_len(KEYS[1], tonumber(ARGV[1]), given - skip)
    if queue_full then return queue_full end
  end
  for i = 8 + skip * 2, #ARGV, 2 do
    if ARGV[4] == '0' then
      add_entry(KEYS[1], ARGV[i], ARGV[i + 1])
    else
      redis.call('ZADD', KEYS[2], ARGV[4], ARGV[i])
    end
  end
  redis.call('HSET', KEYS[3], 'sent:' .. ARGV[2], first + given)
  redis.call('HSETNX', KEYS[3], 'created', ARGV[6])
  redis.call('HSETNX', KEYS[3], 'source', ARGV[7])
  redis.call('PEXPIRE', KEYS[3], ARGV[5])
end
return given - skip
