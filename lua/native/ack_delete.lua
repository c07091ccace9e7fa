local function ack_delete(stream, group, ids)
  local gone = {}
  for first = 1, #ids, 1000 do -- Lua can hand on only so many arguments
    local last = math.min(first + 999, #ids)
    local codes = redis.call('XACKDEL', stream, group, 'IDS', last - first + 1, unpack(ids, first, last))
    for i, code in ipairs(codes) do gone[first + i - 1] = code == 1 end
  end
  return gone
end
