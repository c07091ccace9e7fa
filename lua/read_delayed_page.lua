-- read_delayed_page: read members of the delayed set by rank, bounded by their number and by their size.
--
-- KEYS
--   1    delayed
-- ARGV
--   1    rank of the first member
--   2    maximum number of members
--   3    maximum size of the members (bytes); the first member may be larger
-- RETURNS
--   members and their due times (ms), alternating
local rank, remaining, max_bytes = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local reply, read_bytes, largest = {}, 0, max_bytes
while remaining > 0 do
  -- Few members at a time, and as many as fit if they are like the largest one so far.
  local count = math.max(1, math.min(16, remaining, math.floor((max_bytes - read_bytes) / largest)))
  local members = redis.call('ZRANGE', KEYS[1], rank, rank + count - 1, 'WITHSCORES')
  if #reply == 0 then largest = 1 end
  for i = 1, #members, 2 do
    local size = #members[i]
    if #reply > 0 and read_bytes + size > max_bytes then return reply end
    read_bytes, largest = read_bytes + size, math.max(largest, size)
    reply[#reply + 1] = members[i]
    reply[#reply + 1] = members[i + 1]
  end
  if #members < 2 * count then return reply end
  remaining, rank = remaining - count, rank + count
end
return reply
