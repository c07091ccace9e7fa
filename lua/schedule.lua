-- schedule: add jobs to the delayed set. A job with an id from its caller is added once and gets an index
-- entry.
--
-- KEYS
--   1    delayed
--   2    idempotency marker
--   3..  per job: delayed marker (dlid) and delayed index (didx) if its marker TTL is not 0,
--        dedup marker if its dedup TTL is not 0
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2..  per job: run at (ms), delayed member, marker TTL (s, 0: none), dedup TTL (ms, 0: none)
-- RETURNS
--   a string with one character per job: '1' added, '0' duplicate (a marker existed)
local cached_reply = redis.call('GET', KEYS[2])
if cached_reply then return cached_reply end
local key, flags = 3, {}
for i = 2, #ARGV, 4 do
  local run_at, member, marker_ttl, dedup_ttl = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local delayed_marker, delayed_index, dedup_marker
  if marker_ttl ~= '0' then delayed_marker, delayed_index, key = KEYS[key], KEYS[key + 1], key + 2 end
  if dedup_ttl ~= '0' then dedup_marker, key = KEYS[key], key + 1 end
  local duplicate
  if dedup_marker then
    -- The dedup TTL decides and not the TTL of the delayed marker. A job that is still delayed is a duplicate in any case.
    local delayed_member = redis.call('GET', delayed_index)
    duplicate = redis.call('EXISTS', dedup_marker) == 1 or (delayed_member and redis.call('ZSCORE', KEYS[1], delayed_member))
  elseif delayed_marker then
    duplicate = redis.call('EXISTS', delayed_marker) == 1
  end
  flags[#flags + 1] = duplicate and '0' or '1'
  if not duplicate then
    redis.call('ZADD', KEYS[1], run_at, member)
    if delayed_marker then
      redis.call('SET', delayed_marker, '1', 'EX', marker_ttl)
      redis.call('SET', delayed_index, member, 'EX', marker_ttl)
    end
    if dedup_marker then redis.call('SET', dedup_marker, 'delayed', 'PX', dedup_ttl) end
  end
end
local reply = table.concat(flags)
redis.call('SET', KEYS[2], reply, 'PX', ARGV[1])
return reply
