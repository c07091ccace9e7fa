-- Acknowledge entries and delete them. Returns a list with true for each entry that this call acknowledged.
local function ack_delete(stream, group, ids)
  local deleted = {}
  for first = 1, #ids, 1000 do -- In chunks, because unpack() is limited by the Lua stack.
    local last = math.min(first + 999, #ids)
    local codes = redis.call('XACKDEL', stream, group, 'IDS', last - first + 1, unpack(ids, first, last))
    for i, code in ipairs(codes) do deleted[first + i - 1] = code == 1 end
  end
  return deleted
end
