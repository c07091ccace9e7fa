-- Claim idle entries and read new ones. Requires lease_claim_then_read.
local function lease_read(stream, group, consumer, min_idle, count, max_new)
  return lease_claim_then_read(stream, group, consumer, min_idle, count, max_new)
end
