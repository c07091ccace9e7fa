-- add_batch_part: add the next jobs of one part of a batch to the queue, each index exactly once. The first jobs of a
-- part delete the bitmaps and keys of an earlier batch with the same id.
--
-- KEYS
--   1    stream
--   2    delayed
--   3    batch
--   4    done bitmap of the part
--   5    dead bitmap of the part
--   6    keys of the part
-- ARGV
--   1    max length (0: no limit)
--   2    part
--   3    index of the first job
--   4    run at (ms, 0: now)
--   5    TTL of the batch (ms)
--   6    created (ms)
--   7    source
--   8    owner ('': none)
--   9    digest of the payloads before the first job ('': not known)
--   10   digest of the payloads up to the last job ('': not known)
--   11   the keys of the jobs, one MessagePack value after the other ('': none)
--   12   the size of each key (16 bits, big-endian)
--   13.. per job: d and n; if run at is set: delayed member and ''
-- RETURNS
--   the number of jobs added: fewer than given if an earlier call added some of them
-- @include check_writes
-- @include add_delayed
-- @include add_entry
-- @include check_max_len
-- @include check_batch_not_cancelled
-- @include store_batch_keys
local cancelled = check_batch_not_cancelled(KEYS[3])
if cancelled then return cancelled end
local fields = redis.call('HMGET', KEYS[3], 'sent:' .. ARGV[2], 'digest:' .. ARGV[2], 'total', 'oldest_job')
local sent, digest, total, oldest_job = tonumber(fields[1] or '0'), fields[2], fields[3], tonumber(fields[4] or 'inf')
local first, given = tonumber(ARGV[3]), (#ARGV - 12) / 2
if sent < first then return redis.error_reply('CHASQUIGAP ' .. sent) end
-- The digest belongs to the first `sent` payloads. It can be compared only if they end where this call starts or ends.
if digest and ARGV[10] ~= '' and sent <= first + given then
  local expected = sent == first and ARGV[9] or sent == first + given and ARGV[10]
  if digest ~= expected then return redis.error_reply('CHASQUICHANGED ' .. ARGV[2] .. ' ' .. sent) end
end
local skip = math.min(sent - first, given)
if skip < given then
  if total then return redis.error_reply('CHASQUIFINALIZED ' .. total) end
  if ARGV[4] == '0' then
    local queue_full = check_max_len(KEYS[1], tonumber(ARGV[1]), given - skip)
    if queue_full then return queue_full end
  end
  if ARGV[4] == '0' then check_writes(KEYS[1], 'stream', 'XADD') else check_writes(KEYS[2], 'zset', 'ZADD') end
  check_writes(KEYS[3], 'hash', 'HSET', 'HSETNX', 'HDEL', 'PEXPIRE')
  check_writes(KEYS[4], nil, 'UNLINK', 'PEXPIRE')
  check_writes(KEYS[5], nil, 'UNLINK', 'PEXPIRE')
  check_writes(KEYS[6], sent > 0 and 'hash' or nil, 'UNLINK', 'PEXPIRE', 'HSET')
  if sent == 0 then redis.call('UNLINK', KEYS[4], KEYS[5], KEYS[6]) end
  for i = 13 + skip * 2, #ARGV, 2 do
    if ARGV[4] == '0' then
      add_entry(KEYS[1], ARGV[i], ARGV[i + 1])
    else
      add_delayed(KEYS[2], ARGV[4], ARGV[i])
    end
  end
  if ARGV[11] ~= '' then store_batch_keys(KEYS[6], first + skip, given - skip, ARGV[11], ARGV[12]) end
  redis.call('HSET', KEYS[3], 'sent:' .. ARGV[2], first + given)
  if ARGV[10] ~= '' and (digest or sent == 0) then
    redis.call('HSET', KEYS[3], 'digest:' .. ARGV[2], ARGV[10])
  elseif digest then
    redis.call('HDEL', KEYS[3], 'digest:' .. ARGV[2])
  end
  -- The clocks of several producers may differ.
  if tonumber(ARGV[6]) < oldest_job then redis.call('HSET', KEYS[3], 'oldest_job', ARGV[6]) end
  redis.call('HSETNX', KEYS[3], 'created', ARGV[6])
  redis.call('HSETNX', KEYS[3], 'source', ARGV[7])
  if ARGV[8] ~= '' then redis.call('HSETNX', KEYS[3], 'owner', ARGV[8]) end
  for _, key in ipairs({KEYS[3], KEYS[4], KEYS[5], KEYS[6]}) do redis.call('PEXPIRE', key, ARGV[5]) end
end
return given - skip
