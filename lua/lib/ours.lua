-- Whether an entry is still with this consumer. Losing order: A stands still, B claims the entry and runs it, A wakes and
-- puts the job back as it was when A read it; then it runs once more beside B, with the number of a run that was.
local function ours(stream, group, consumer, id)
  local found = redis.pcall('XPENDING', stream, group, id, id, 1, consumer)
  if not found.err then return found[1] ~= nil end
  if string.find(found.err, 'NOGROUP', 1, true) then return false end
  error(found)
end
