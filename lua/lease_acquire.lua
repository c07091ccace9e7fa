-- lease_acquire: lease entries in shared mode, alongside ordinary workers of the same consumer group.
--
-- KEYS
--   1    stream
--   2    delayed
-- ARGV
--   1    group
--   2    consumer
--   3    maximum number of entries
--   4    claim after (ms): the idle time after which workers claim an entry
--   5    lease duration (ms)
--   6    maximum number of active leases (0: no limit)
--   7    maximum number of unacknowledged entries (0: no limit)
-- RETURNS
--   {status, now (ms), ms until an entry may become available (-1: unknown), due time of the first delayed job
--   (ms, 0: none), last entry id of the stream, fencing token (always 0), entries};
--   status: 0 ok, 1 too many active leases, 2 too many unacknowledged entries;
--   per entry {id, fields, idle (ms), previous deliveries}
-- @include now_ms
-- @include lease_count_active
-- @include lease_claim_then_read
-- @include lease_read
-- @include lease_reply
local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local count, claim_after, lease_ms = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local max_in_flight, max_unacknowledged, status = tonumber(ARGV[6]), tonumber(ARGV[7]), 0
redis.pcall('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM') -- The error BUSYGROUP means that the group exists.
local pending = redis.call('XPENDING', stream, group)[1]
if max_in_flight > 0 and pending + count > max_in_flight then
  count = math.min(count, max_in_flight - lease_count_active(stream, group, claim_after))
  if count < 1 then status = 1 end
end
local max_new = max_unacknowledged > 0 and math.max(0, max_unacknowledged - pending) or count
local entries = {}
if status == 0 then
  entries = lease_read(stream, group, consumer, claim_after, count, max_new)
  if #entries == 0 and max_new < 1 then status = 2 end
end
if lease_ms < claim_after then
  for _, entry in ipairs(entries) do
    -- Set IDLE so that the entry becomes claimable exactly when the lease expires.
    redis.call('XCLAIM', stream, group, consumer, 0, entry[1], 'IDLE', claim_after - lease_ms, 'JUSTID')
  end
end
local due_in = -1
if #entries == 0 then
  for _, entry in ipairs(redis.call('XPENDING', stream, group, '-', '+', 100)) do
    local remaining = math.max(0, claim_after - entry[3])
    if due_in < 0 or remaining < due_in then due_in = remaining end
  end
end
return lease_reply(stream, KEYS[2], status, now_ms(), due_in, 0, entries)
