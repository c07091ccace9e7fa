-- add: put jobs on the stream, all or none; a job with a marker only if the marker is new.
-- KEYS  1 stream  2 once  3.. one marker for each job that has one
-- ARGV  1 max length (0: none)  2 life of once (ms)  3.. per job: d, n, life of its marker (ms, 0: no marker)
-- returns a string with one sign a job: 1 added, 0 its marker stood already
-- @include add_entry
-- @include check_max_len
local said = redis.call('GET', KEYS[2])
if said then return said end
local flags, markers, seen, key, fresh = {}, {}, {}, 2, 0
for i = 3, #ARGV, 3 do
  local job, sign = #flags + 1, '1'
  if ARGV[i + 2] ~= '0' then
    key = key + 1
    markers[job] = KEYS[key]
    -- The same id may stand twice in one call.
    if seen[KEYS[key]] or redis.call('EXISTS', KEYS[key]) == 1 then sign = '0' end
    seen[KEYS[key]] = true
  end
  flags[job] = sign
  if sign == '1' then fresh = fresh + 1 end
end
local full = room(KEYS[1], tonumber(ARGV[1]), fresh)
if full then return full end
for job = 1, #flags do
  if flags[job] == '1' then
    local i = job * 3
    local entry = push(KEYS[1], ARGV[i], ARGV[i + 1])
    if markers[job] then redis.call('SET', markers[job], entry, 'PX', ARGV[i + 2]) end
  end
end
local answer = table.concat(flags)
redis.call('SET', KEYS[2], answer, 'PX', ARGV[2])
return answer
