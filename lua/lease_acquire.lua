-- lease_acquire: lease entries in shared mode, alongside ordinary workers of the same consumer group.
--
-- KEYS
--   1    idempotency marker
--   2    stream
--   3    delayed
-- ARGV
--   1    TTL of the idempotency marker (ms)
--   2    group
--   3    consumer
--   4    maximum number of entries
--   5    claim after (ms): the idle time after which workers claim an entry
--   6    lease duration (ms)
--   7    maximum number of active leases (0: no limit)
--   8    maximum number of unacknowledged entries (0: no limit)
--   9    claim until (ms): the latest time at which entries may be claimed; a later one is a jump of the clock
-- RETURNS
--   {status, now (ms), ms until an entry may become available (-1: unknown), due time of the first delayed job
--   (ms, 0: none), last entry id of the stream, fencing token (always 0), entries};
--   status: 0 ok, 1 too many active leases, 2 too many unacknowledged entries;
--   per entry {id, fields, idle (ms), previous deliveries}
-- @include check_writes
-- @include lease_check_acquire
-- @include now_ms
-- @include cached_reply
-- @include store_reply
-- @include lease_is_held
-- @include lease_recall
-- @include lease_count_active
-- @include claim_then_read
-- @include read_entries
-- @include lease_reply
local stream, group, consumer = KEYS[2], ARGV[2], ARGV[3]
local granted = cached_reply(KEYS[1])
if granted then
  local recalled = lease_recall(stream, group, nil, consumer, 0, granted[2])
  return lease_reply(stream, KEYS[3], 0, granted[1], -1, 0, recalled)
end
lease_check_acquire(KEYS[1], stream, KEYS[3])
local now, count, claim_after, lease_ms = now_ms(), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local max_in_flight, max_unacknowledged, status = tonumber(ARGV[7]), tonumber(ARGV[8]), 0
local min_idle = now <= tonumber(ARGV[9]) and claim_after or nil
redis.pcall('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM') -- The error BUSYGROUP means that the group exists.
local pending = redis.call('XPENDING', stream, group)[1]
if max_in_flight > 0 and pending + count > max_in_flight then
  count = math.min(count, max_in_flight - lease_count_active(stream, group, claim_after))
  if count < 1 then status = 1 end
end
local max_new = max_unacknowledged > 0 and math.max(0, max_unacknowledged - pending) or count
local entries, ids, due_in = {}, {}, -1
if status == 0 then
  entries = read_entries(stream, group, consumer, min_idle, count, max_new)
  if #entries == 0 and max_new < 1 then status = 2 end
end
for _, entry in ipairs(entries) do
  ids[#ids + 1], ids[#ids + 2] = entry[1], entry[4]
  if lease_ms < claim_after then
    -- Set IDLE so that the entry becomes claimable exactly when the lease expires.
    redis.call('XCLAIM', stream, group, consumer, 0, entry[1], 'IDLE', claim_after - lease_ms, 'JUSTID')
  end
end
if #entries > 0 then
  store_reply(KEYS[1], ARGV[1], {now, ids})
elseif min_idle then
  for _, entry in ipairs(redis.call('XPENDING', stream, group, '-', '+', 100)) do
    local remaining = math.max(0, claim_after - entry[3])
    if due_in < 0 or remaining < due_in then due_in = remaining end
  end
end
return lease_reply(stream, KEYS[3], status, now, due_in, 0, entries)
