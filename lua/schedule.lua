-- schedule: put jobs in the delayed set; one with an id of its caller only once, with its index.
-- KEYS  1 delayed  2 once  3.. per job: dlid and didx if it has a marker life, unique if it has a unique life
-- ARGV  1 life of once (ms)  2.. per job: run at (ms), member, marker life (s, 0: none), unique life (ms, 0: none)
-- returns a string with one sign a job: 1 added, 0 its marker stood already
local said = redis.call('GET', KEYS[2])
if said then return said end
local key, flags = 3, {}
for i = 2, #ARGV, 4 do
  local run_at, member, life, unique_life = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local dlid, didx, unique
  if life ~= '0' then dlid, didx, key = KEYS[key], KEYS[key + 1], key + 2 end
  if unique_life ~= '0' then unique, key = KEYS[key], key + 1 end
  local taken
  if unique then
    -- Its own life counts and not that of dlid; but a job that is still delayed is there.
    local waiting = redis.call('GET', didx)
    taken = redis.call('EXISTS', unique) == 1 or (waiting and redis.call('ZSCORE', KEYS[1], waiting))
  elseif dlid then
    taken = redis.call('EXISTS', dlid) == 1
  end
  flags[#flags + 1] = taken and '0' or '1'
  if not taken then
    redis.call('ZADD', KEYS[1], run_at, member)
    if dlid then
      redis.call('SET', dlid, '1', 'EX', life)
      redis.call('SET', didx, member, 'EX', life)
    end
    if unique then redis.call('SET', unique, 'delayed', 'PX', unique_life) end
  end
end
local answer = table.concat(flags)
redis.call('SET', KEYS[2], answer, 'PX', ARGV[1])
return answer
