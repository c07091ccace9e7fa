-- schedule: add jobs to the delayed set. A job with an id from its caller is added once and gets an index
-- entry, and deletes the result and the progress of an earlier job with this id.
--
-- KEYS
--   1    delayed
--   2    idempotency marker
--   3    cancel requests
--   4..  per job: delayed marker (dlid), delayed index (didx), result, progress and progress value if its marker TTL is
--        not 0, dedup marker if its dedup TTL is not 0
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2..  per job: run at (ms), delayed member, marker TTL (s, 0: none), dedup TTL (ms, 0: none)
-- RETURNS
--   a string with one character per job: '1' added, '0' duplicate (a marker existed)
-- @include check_writes
-- @include add_delayed
-- @include split_delayed_member
-- @include supersede_cancel_request
local cached_reply = redis.call('GET', KEYS[2])
if cached_reply then return cached_reply end
local key, flags, jobs, seen = 4, {}, {}, {}
for i = 2, #ARGV, 4 do
  local job, marker_ttl, dedup_ttl = {argument = i}, ARGV[i + 2], ARGV[i + 3]
  if marker_ttl ~= '0' then
    job.marker, job.index, job.results = KEYS[key], KEYS[key + 1], {KEYS[key + 2], KEYS[key + 3], KEYS[key + 4]}
    key = key + 5
  end
  if dedup_ttl ~= '0' then job.dedup_marker, key = KEYS[key], key + 1 end
  local duplicate
  if job.dedup_marker then
    -- The dedup TTL decides and not the TTL of the delayed marker. A job that is still delayed is a duplicate in any case.
    local delayed_member = redis.call('GET', job.index)
    duplicate = redis.call('GET', job.dedup_marker) or delayed_member and redis.call('ZSCORE', KEYS[1], delayed_member)
  elseif job.marker then
    duplicate = redis.call('GET', job.marker)
  end
  -- The same job id may occur twice in one call.
  duplicate = duplicate or seen[job.marker or '']
  if job.marker then seen[job.marker] = true end
  flags[#flags + 1] = duplicate and '0' or '1'
  if not duplicate then jobs[#jobs + 1] = job end
end
check_writes(KEYS[2], nil, 'SET')
local has_requests = #KEYS > 3 and redis.call('EXISTS', KEYS[3]) == 1
if #KEYS > 3 then check_writes(KEYS[4], nil, 'UNLINK') end
if has_requests then check_writes(KEYS[3], nil, 'HGET', 'HSET') end
check_writes(KEYS[1], 'zset', 'ZADD')
for _, job in ipairs(jobs) do
  local i, member = job.argument, ARGV[job.argument + 1]
  if has_requests and job.marker then
    member = supersede_cancel_request(KEYS[3], member, #member - #split_delayed_member(member) + 1)
  end
  member = add_delayed(KEYS[1], ARGV[i], member)
  if job.marker then
    redis.call('SET', job.marker, '1', 'EX', ARGV[i + 2])
    redis.call('SET', job.index, member, 'EX', ARGV[i + 2])
    redis.call('UNLINK', unpack(job.results))
  end
  if job.dedup_marker then redis.call('SET', job.dedup_marker, 'delayed', 'PX', ARGV[i + 3]) end
end
local reply = table.concat(flags)
redis.call('SET', KEYS[2], reply, 'PX', ARGV[1])
return reply
