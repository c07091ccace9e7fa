local function is_owner(stream, group, consumer, id)
  local found = redis.pcall('XPENDING', stream, group, id, id, 1, consumer)
  if not found.err then return found[1] ~= nil end
  if string.find(found.err, 'NOGROUP', 1, true) then return false end
  error(found)
end
-- Settle the entries that are still with this consumer; says for each 1 settled, 0 not ours. Losing order: A stands still,
-- B claims the entry and runs it, A wakes and puts the job back as it was when A read it; then it runs once more beside B,
-- with the number of a run that was.
local function ack_if_owner(stream, group, consumer, ids)
  local mine, at, answer = {}, {}, {}
  for i, id in ipairs(ids) do
    answer[i] = 0
    if is_owner(stream, group, consumer, id) then
      mine[#mine + 1] = id
      at[#at + 1] = i
    end
  end
  for j, gone in ipairs(ack_delete(stream, group, mine)) do
    if gone then answer[at[j]] = 1 end
  end
  return answer
end
