-- Split a member of the delayed set into d and n, or return nil if it is malformed.
-- A member is the length of the name (u32, little-endian), the name n, and the envelope d.
local function split_delayed_member(member)
  if #member < 4 then return nil end
  local byte1, byte2, byte3, byte4 = string.byte(member, 1, 4)
  local name_end = 4 + byte1 + byte2 * 256 + byte3 * 65536 + byte4 * 16777216
  if name_end >= #member then return nil end
  return string.sub(member, name_end + 1), string.sub(member, 5, name_end)
end
