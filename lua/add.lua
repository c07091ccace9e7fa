-- add: add jobs to the stream, all or none. A job with a dedup marker is added only if the marker does not
-- exist.
--
-- KEYS
--   1    stream
--   2    idempotency marker
--   3..  one dedup marker for each job that has one
-- ARGV
--   1    max length (0: no limit)
--   2    TTL of the idempotency marker (ms)
--   3..  per job: d, n, TTL of its dedup marker (ms, 0: no marker)
-- RETURNS
--   a string with one character per job: '1' added, '0' duplicate (its dedup marker existed)
-- @include add_entry
-- @include check_max_len
local cached_reply = redis.call('GET', KEYS[2])
if cached_reply then return cached_reply end
local flags, markers, seen, key, new_jobs = {}, {}, {}, 2, 0
for i = 3, #ARGV, 3 do
  local job, flag = #flags + 1, '1'
  if ARGV[i + 2] ~= '0' then
    key = key + 1
    markers[job] = KEYS[key]
    -- The same job id may occur twice in one call.
    if seen[KEYS[key]] or redis.call('EXISTS', KEYS[key]) == 1 then flag = '0' end
    seen[KEYS[key]] = true
  end
  flags[job] = flag
  if flag == '1' then new_jobs = new_jobs + 1 end
end
local queue_full = check_max_len(KEYS[1], tonumber(ARGV[1]), new_jobs)
if queue_full then return queue_full end
for job = 1, #flags do
  if flags[job] == '1' then
    local i = job * 3
    local entry_id = add_entry(KEYS[1], ARGV[i], ARGV[i + 1])
    if markers[job] then redis.call('SET', markers[job], entry_id, 'PX', ARGV[i + 2]) end
  end
end
local reply = table.concat(flags)
redis.call('SET', KEYS[2], reply, 'PX', ARGV[2])
return reply
