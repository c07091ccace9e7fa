-- add: add jobs to the stream, all or none. A job with a dedup marker is added only if the marker does not
-- exist. A job with an id from its caller deletes the result and the progress of an earlier job with this id.
--
-- KEYS
--   1    stream
--   2    idempotency marker
--   3    cancel requests
--   4..  per job: result, progress and progress value if its caller gave the id, dedup marker if its TTL is not 0; then
--        the idempotency marker of the call that must have been executed before, if there is one
-- ARGV
--   1    max length (0: no limit)
--   2    TTL of the idempotency marker (ms)
--   3..  per job: d, n, TTL of its dedup marker (ms, 0: no marker), its caller gave the id (0, 1)
-- RETURNS
--   a string with one character per job: '1' added, '0' duplicate (its dedup marker existed)
-- @include check_writes
-- @include add_entry
-- @include check_max_len
-- @include supersede_cancel_request
local cached_reply = redis.call('GET', KEYS[2])
if cached_reply then return cached_reply end
local flags, markers, results, seen, key, new_jobs = {}, {}, {}, {}, 3, 0
for i = 3, #ARGV, 4 do
  local job, flag = #flags + 1, '1'
  if ARGV[i + 3] ~= '0' then
    results[job], key = {KEYS[key + 1], KEYS[key + 2], KEYS[key + 3]}, key + 3
  end
  if ARGV[i + 2] ~= '0' then
    key = key + 1
    markers[job] = KEYS[key]
    -- The same job id may occur twice in one call.
    if seen[KEYS[key]] or redis.call('GET', KEYS[key]) then flag = '0' end
    seen[KEYS[key]] = true
  end
  flags[job] = flag
  if flag == '1' then new_jobs = new_jobs + 1 end
end
if KEYS[key + 1] and not redis.call('GET', KEYS[key + 1]) then return redis.error_reply('CHASQUIORDER') end
local queue_full = check_max_len(KEYS[1], tonumber(ARGV[1]), new_jobs)
if queue_full then return queue_full end
check_writes(KEYS[2], nil, 'SET')
local _, first_results = next(results)
local has_requests = first_results and redis.call('EXISTS', KEYS[3]) == 1
if first_results then check_writes(first_results[1], nil, 'UNLINK') end
if has_requests then
  check_writes(KEYS[1], 'stream', 'XADD')
  check_writes(KEYS[3], nil, 'HGET', 'HSET')
end
for job = 1, #flags do
  if flags[job] == '1' then
    local i = job * 4 - 1
    local d = has_requests and results[job] and supersede_cancel_request(KEYS[3], ARGV[i], 1) or ARGV[i]
    local entry_id = add_entry(KEYS[1], d, ARGV[i + 1])
    if markers[job] then redis.call('SET', markers[job], entry_id, 'PX', ARGV[i + 2]) end
    if results[job] then redis.call('UNLINK', unpack(results[job])) end
  end
end
local reply = table.concat(flags)
redis.call('SET', KEYS[2], reply, 'PX', ARGV[2])
return reply
