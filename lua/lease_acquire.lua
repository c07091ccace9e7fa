-- lease_acquire: lease entries in shared mode, beside workers that know nothing of leases.
-- KEYS  1 stream  2 delayed
-- ARGV  1 group  2 consumer  3 at most  4 reclaim after (ms)  5 leased for (ms)  6 in flight at most (0: any)  7 pinned at most (0: any)
-- returns {status, now (ms), next due in (ms, -1: unknown), first delayed job due at (ms, 0: none), tail, fence 0, entries}; status 0 ok, 1 too many in flight, 2 too many pinned; per entry {id, fields, idle, deliveries before}
-- @include clock
-- @include lease_count_active
-- @include lease_claim_then_read
-- @include lease_read
-- @include lease_reply
local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local count, reclaim, life = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local most, most_pinned, status = tonumber(ARGV[6]), tonumber(ARGV[7]), 0
redis.pcall('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM') -- BUSYGROUP: it is there
local pending = redis.call('XPENDING', stream, group)[1]
if most > 0 and pending + count > most then
  count = math.min(count, most - lease_count_active(stream, group, reclaim))
  if count < 1 then status = 1 end
end
local new_room = most_pinned > 0 and math.max(0, most_pinned - pending) or count
local entries = {}
if status == 0 then
  entries = lease_read(stream, group, consumer, reclaim, count, new_room)
  if #entries == 0 and new_room < 1 then status = 2 end
end
if life < reclaim then
  for _, entry in ipairs(entries) do
    -- As if it had been idle for a while already: then it is everybody's after exactly the lease's time.
    redis.call('XCLAIM', stream, group, consumer, 0, entry[1], 'IDLE', reclaim - life, 'JUSTID')
  end
end
local due_in = -1
if #entries == 0 then
  for _, entry in ipairs(redis.call('XPENDING', stream, group, '-', '+', 100)) do
    local left = math.max(0, reclaim - entry[3])
    if due_in < 0 or left < due_in then due_in = left end
  end
end
return lease_reply(stream, KEYS[2], status, now_ms(), due_in, 0, entries)
