-- Return the number of parts of a batch, given its fields and values as HGETALL replies. A batch that is not finalized has
-- as many parts as were sent so far.
local function batch_parts(fields)
  local parts, last_part = nil, -1
  for i = 1, #fields, 2 do
    if fields[i] == 'parts' then
      parts = tonumber(fields[i + 1])
    elseif string.sub(fields[i], 1, 5) == 'sent:' then
      last_part = math.max(last_part, tonumber(string.sub(fields[i], 6)))
    end
  end
  return parts or last_part + 1
end
