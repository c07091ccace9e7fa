-- Claim idle entries and read new ones. Requires claim_then_read.
local function read_entries(stream, group, consumer, min_idle, count, max_new)
  return claim_then_read(stream, group, consumer, min_idle, count, max_new)
end
