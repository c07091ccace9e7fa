-- What a take answers: {status, now, what is next due in (ms, -1: unknown), first delayed job due at (ms, 0: none), tail, fence, entries}.
local function lease_reply(stream, delayed, status, now, due_in, fence, entries)
  local tail = '0-0'
  local info = redis.call('XINFO', 'STREAM', stream)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then tail = info[i + 1] end
  end
  local first = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')
  local delayed_due = first[2] and math.max(1, math.floor(math.min(tonumber(first[2]), 2 ^ 53))) or 0
  return {status, now, due_in, delayed_due, tail, fence, entries}
end
