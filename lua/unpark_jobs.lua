-- unpark_jobs: return parked jobs of a resumed job name to the stream, in the order in which they were parked. When none is
-- left, the name is removed from paused_names.
--
-- KEYS
--   1    delayed
--   2    stream
--   3    paused_names
-- ARGV
--   1    job name
--   2    lowest score of its parked jobs
--   3    highest score of its parked jobs
-- RETURNS
--   1 there may be more jobs, call again; 0 all are returned, or the name is paused again
-- @include check_writes
-- @include split_delayed_member
-- @include add_entry
local MAX_BYTES, MAX_JOBS, PAGE = 1024 * 1024, 1000, 8
check_writes(KEYS[1], 'zset', 'ZREM', 'ZRANGE')
check_writes(KEYS[2], 'stream', 'XADD')
check_writes(KEYS[3], 'hash', 'HDEL')
if redis.call('HGET', KEYS[3], ARGV[1]) ~= 'resuming' then return 0 end
local bytes, jobs = 0, 0
while bytes < MAX_BYTES and jobs < MAX_JOBS do
  local members = redis.call('ZRANGE', KEYS[1], ARGV[2], ARGV[3], 'BYSCORE', 'LIMIT', 0, PAGE)
  for _, member in ipairs(members) do
    redis.call('ZREM', KEYS[1], member)
    local d, n = split_delayed_member(member)
    add_entry(KEYS[2], d or member, n or '') -- A worker dead-letters a malformed one.
    bytes, jobs = bytes + #member, jobs + 1
  end
  if #members < PAGE then
    redis.call('HDEL', KEYS[3], ARGV[1])
    return 0
  end
end
return 1
