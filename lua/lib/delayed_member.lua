-- A delayed member is the name's length (u32, little-endian), the name, the envelope.
local function split_member(member)
  if #member < 4 then return nil end
  local a, b, c, e = string.byte(member, 1, 4)
  local cut = 4 + a + b * 256 + c * 65536 + e * 16777216
  if cut >= #member then return nil end
  return string.sub(member, cut + 1), string.sub(member, 5, cut)
end
